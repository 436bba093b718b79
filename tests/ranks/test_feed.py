"""Feeding on real ranks: ahead or not the same run, data that end early, data that changed, the probe of the memory, and threads that end."""

from __future__ import annotations

import dataclasses
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcore import dist
from ftcore.checkpoint.load import seed_all
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource
from ftcore.dist import Ranks
from ftcore.feed.fed_update import FedUpdate
from ftcore.feed.planned import PlannedFeeder
from ftcore.run import build_engine, restore
from ftcore.spec.errors import CheckpointError, DataError, TrainingError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import OptimizerSection, Spec
from ftcore.train import memory_probe
from ftcore.train.loop import Trainer
from tests.ranks.engine_facts import allow_fp16
from tests.ranks.jobs import make_job, make_run, read_lines, whole_state
from tests.ranks.pool import RankPool
from tests.ranks.small_model import write_uneven_samples
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]
RANKS = 2


class Ending:
    """Feeds as another feeder does, but ends after so many updates: what a stream does."""

    def __init__(self, inner: PlannedFeeder, last: int) -> None:
        self.inner, self.last, self.total_updates = inner, last, inner.total_updates
        self.wait_s = 0.0

    def next(self, update: int) -> FedUpdate | None:
        fed = self.inner.next(update) if update < self.last else None
        return None if fed is None else dataclasses.replace(fed, position={"after": update, "rank": self.inner._ranks.rank})

    def whole_position(self, position: dict[str, Any]) -> dict[str, Any]:
        parts = dist.gather_objects(position, self.inner._ranks)
        return {"parts": parts}

    def close(self) -> None:
        self.inner.close()


@dataclass
class Seen:
    """What one run leaves on a rank."""

    error: str = ""
    losses: list[tuple[float, float]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    rank_lines: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    cursors: dict[str, dict[str, Any]] = field(default_factory=dict)
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    feeding: list[str] = field(default_factory=list)
    """Threads that still work ahead afterwards."""


@dataclass(frozen=True)
class Asked:
    """One run, or going on with one."""

    folder: str
    spec: Spec
    samples: str
    ends_after: int | None = None
    breaks_at: int | None = None
    probes: bool = False
    allow: bool = False
    held_out: bool = False


def run_all(rank: int, world_size: int, asked: list[Asked], source: ModelSource) -> list[Seen]:
    ranks = dist.start()
    allow_fp16()
    seen = [_run(each, source, ranks) for each in asked]
    dist.barrier()
    dist.stop()
    return seen


def _run(asked: Asked, source: ModelSource, ranks: Ranks) -> Seen:
    run = Path(asked.folder)
    if ranks.is_first:
        make_run(run, asked.spec, ranks.world_size)
        if asked.allow:
            started = {"event": "launch_started", "attempt": 1, "data_change_allowed": 1.0 + len(read_events(run))}
            (run / "events.jsonl").open("a").write(json.dumps(started) + "\n")
    dist.barrier()
    job = make_job(RunDir(run), asked.spec, source, asked.samples)
    job = dataclasses.replace(job, held_out={"eval": SampleSet.open(asked.samples)} if asked.held_out else {})
    engine = build_engine(job, ranks)
    seed_all(3, 0, ranks.rank)
    seen = Seen()
    try:
        trainer = Trainer(engine, job, restore(engine, job))
        if asked.ends_after is not None:
            trainer._feeder = Ending(trainer._feeder, asked.ends_after)  # type: ignore[arg-type,assignment]
        if asked.breaks_at is not None:
            _break(trainer._feeder, asked.breaks_at)
        if asked.probes:
            engine.train()
            memory_probe.probe_memory(engine, job)
        trainer.run()
    except (CheckpointError, DataError, TrainingError) as error:
        seen.error = str(error)
    seen.state = whole_state(engine)
    seen.rank_lines = read_lines(job.run_dir.rank_metrics(ranks.rank)) if job.run_dir.rank_metrics(ranks.rank).exists() else []
    seen.feeding = [thread.name for thread in threading.enumerate() if thread.name == "feed"]
    if ranks.is_first:
        seen.lines = read_lines(job.run_dir.metrics) if job.run_dir.metrics.exists() else []
        seen.losses = [(line["loss"], line["grad_norm"]) for line in seen.lines]
        seen.events = read_events(run)
        seen.cursors = {path.parent.name: json.loads(path.read_text()) for path in run.glob("checkpoints/*/cursor.json")}
    engine.deepspeed.destroy()
    return seen


def _break(feeder: Any, update: int) -> None:
    """The samples of that update can't be read, by the thread that works ahead."""
    original = feeder._ahead._make

    def make(index: int) -> FedUpdate:
        if index == update:
            raise DataError("the file is damaged", where="data.train", fix="put it back")
        fed: FedUpdate = original(index)
        return fed

    feeder._ahead._make = make


def read_events(run: Path) -> list[dict[str, Any]]:
    return read_lines(run / "events.jsonl") if (run / "events.jsonl").exists() else []


def with_ahead(spec: Spec, updates: int) -> Spec:
    return with_section(spec, "data", prefetch_updates=updates)


def named(seen: Seen, name: str) -> list[dict[str, Any]]:
    return [event for event in seen.events if event["event"] == name]


@pytest.fixture(scope="module")
def runs(pool: RankPool, small: Small, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Seen]]:
    """By rank and name."""
    folder = tmp_path_factory.mktemp("feed")
    source, samples = small
    other = write_other(folder)
    spec = make_spec(2, updates=14, save_steps=4)
    held = with_section(spec, "checkpoint", metric_for_best_model="loss")
    asked = {f"ahead {count}": Asked(str(folder / f"ahead_{count}"), with_ahead(spec, count), samples) for count in (0, 2, 5)}
    asked["breaks"] = Asked(str(folder / "breaks"), with_ahead(spec, 3), samples, breaks_at=6)
    # Ends where nothing is due, where a save was, and before anything new in a run that goes on.
    asked["ends at 6"] = Asked(str(folder / "ends_6"), held, samples, ends_after=6, held_out=True)
    asked["ends at 6 again"] = Asked(str(folder / "ends_6"), held, samples, ends_after=6, held_out=True)
    asked["ends at 8"] = Asked(str(folder / "ends_8"), held, samples, ends_after=8, held_out=True)
    asked["ended unnoticed"] = Asked(str(folder / "ends_8b"), with_section(held, "train", max_steps=8), samples)
    asked["noticed later"] = Asked(str(folder / "ends_8b"), held, samples, ends_after=8, held_out=True)
    half = with_section(spec, "train", max_steps=4)
    asked["begun"] = Asked(str(folder / "changed"), half, samples)
    for name, allow in (("refused", False), ("allowed", True), ("allowed once", False)):
        asked[name] = Asked(str(folder / "changed"), spec, other, allow=allow)
    asked["not a second time"] = Asked(str(folder / "changed"), with_section(spec, "train", max_steps=16), samples)
    muon = OptimizerSection(type="muon", learning_rate=1e-3)
    probed = {f"stage {stage}": make_spec(stage, updates=2) for stage in range(4)}
    probed |= {"lora": make_spec(3, updates=2, method="lora"), "bf16": make_spec(2, updates=2, precision="bf16", coalesce=True)}
    probed["fp16"] = with_section(with_section(make_spec(2, updates=2), "train", precision="fp16"), "model", dtype="float16")
    probed["fp16"] = with_section(probed["fp16"], "zero", overrides={"fp16": {"initial_scale_power": 8}})
    probed["muon"] = make_spec(1, updates=2, optimizer=muon)
    for name, each in probed.items():
        asked |= {f"{name} probed {probes}": Asked(str(folder / f"{name}_{probes}"), each, samples, probes=probes) for probes in (False, True)}
    found = pool.run(run_all, RANKS, list(asked.values()), source, logs=folder / "logs")
    return [dict(zip(asked, of_rank, strict=True)) for of_rank in found]


def write_other(folder: Path) -> str:
    write_uneven_samples(folder / "other.arrow", seed=6)
    return str(folder / "other.arrow")


def test_ahead_or_not_the_run_is_the_same(runs: list[dict[str, Seen]]) -> None:
    first = runs[0]
    for name in ("ahead 2", "ahead 5"):
        assert first[name].losses == first["ahead 0"].losses and len(first[name].losses) == 14
        assert all(torch.equal(value, first["ahead 0"].state[key]) for key, value in first[name].state.items())
    assert all(not seen.feeding for of_rank in runs for seen in of_rank.values()), "no thread is left after an end, good or bad"


def test_the_wait_of_every_update_is_written_down_by_every_rank(runs: list[dict[str, Seen]]) -> None:
    for of_rank in runs:
        lines = of_rank["ahead 2"].rank_lines
        assert len(lines) == 14 and all(0 <= line["data_wait_seconds"] <= line["data_wait_seconds_total"] for line in lines)
        assert lines[-1]["data_wait_seconds_total"] == pytest.approx(sum(line["data_wait_seconds"] for line in lines))
    for line in runs[0]["ahead 0"].lines:
        assert 0 < line["data_wait_seconds"] < line["seconds"]


def test_tokens_and_supervised_tokens_have_rates_of_their_own(runs: list[dict[str, Seen]]) -> None:
    """L05, L06: sample tokens, what is computed and what is supervised; the ranks' sums are the update's."""
    first, second = (of_rank["ahead 0"] for of_rank in runs)
    for line, one, other in zip(first.lines, first.rank_lines, second.rank_lines, strict=True):
        assert line["supervised_tokens"] < line["tokens"] <= line["computed_tokens"]
        assert one["tokens"] + other["tokens"] == line["tokens"]
        assert one["computed_tokens"] + other["computed_tokens"] == line["computed_tokens"]
        assert line["tokens_per_s"] == pytest.approx(line["tokens"] / line["seconds"])
        assert line["supervised_tokens_per_s"] == pytest.approx(line["supervised_tokens"] / line["seconds"])


def test_an_error_of_the_thread_is_the_runs_own(runs: list[dict[str, Seen]]) -> None:
    for of_rank in runs:
        assert of_rank["breaks"].error == "data.train: the file is damaged\n    fix: put it back"
    assert [line["update"] for line in runs[0]["breaks"].lines] == [1, 2, 3, 4, 5, 6], "the updates before it are trained"


def test_data_that_end_early_end_the_run_with_all_that_an_end_has(runs: list[dict[str, Seen]]) -> None:
    for name, last in (("ends at 6", 6), ("ends at 8", 8)):
        seen = runs[0][name]
        assert not any(of_rank[name].error for of_rank in runs)
        assert [event["update"] for event in named(seen, "data_end")] == [last] and not named(seen, "early_stop")
        assert [event["update"] for event in named(seen, "evaluation")][-1] == last
        cursor = seen.cursors[f"update_0000000{last}"]
        assert cursor["next_update"] == last
        assert cursor["stream"] == {"parts": [{"after": last - 1, "rank": rank} for rank in range(RANKS)]}, "every rank's part of the position is kept"


def test_an_ended_run_that_goes_on_has_nothing_to_do(runs: list[dict[str, Seen]]) -> None:
    again = runs[0]["ends at 6 again"]
    assert len(named(again, "data_end")) == 1 and len(again.lines) == 6
    assert [event["update"] for event in named(again, "evaluation")] == [0, 6]


def test_an_end_that_nobody_noticed_is_made_up_for(runs: list[dict[str, Seen]]) -> None:
    """The run stopped after its last update, before the data said that it was."""
    later = runs[0]["noticed later"]
    assert [event["update"] for event in named(later, "evaluation")] == [8] and [event["update"] for event in named(later, "data_end")] == [8]


def test_other_data_are_refused_until_somebody_allows_them(runs: list[dict[str, Seen]]) -> None:
    first = runs[0]
    begun = first["begun"].cursors["update_00000004"]
    for of_rank in runs:
        assert f"the set train changed since the checkpoint was written (fingerprint {begun['data_fingerprint'][:12]} then" in of_rank["refused"].error
        assert "--allow-data-change" in of_rank["refused"].error
        assert of_rank["allowed"].error == of_rank["allowed once"].error == ""
    [change] = named(first["allowed"], "data_changed")
    after = first["allowed"].cursors["update_00000014"]
    assert (change["update"], change["fingerprint_before"], change["fingerprint"]) == (4, begun["data_fingerprint"], after["data_fingerprint"])
    assert begun["data_fingerprint"] != after["data_fingerprint"] and after["samples_seen"] > begun["samples_seen"]
    assert [line["update"] for line in first["allowed"].lines] == list(range(1, 15)), "the update's number goes on"
    assert all("the set train changed" in of_rank["not a second time"].error for of_rank in runs), "what was allowed is one change"


@pytest.mark.parametrize("name", ["stage 0", "stage 1", "stage 2", "stage 3", "lora", "bf16", "fp16", "muon"])
def test_the_probe_of_the_memory_changes_nothing(name: str, runs: list[dict[str, Seen]]) -> None:
    """E10: to the bit, dropout included."""
    plain, probed = runs[0][f"{name} probed False"], runs[0][f"{name} probed True"]
    assert plain.losses == probed.losses and len(plain.losses) == 2
    assert plain.state.keys() == probed.state.keys() and all(torch.equal(value, probed.state[key]) for key, value in plain.state.items())
