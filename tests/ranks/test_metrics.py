"""What two real ranks write down: valid by the schemas, whole with any logging_steps, told apart by what a token is, and right over a resume on other ranks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ftcore.data.mix import SampleMix
from ftcore.data.prepared import ModelSource
from ftcore.spec.model_work import AttentionWork, ModelWork
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_record import RunRecord, attempts, read_run, totals
from ftcore.spec.sections import Spec
from tests.ranks.jobs import TrainedRank, train_runs
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section
from tests.unit.test_metrics_schema import faults

Small = tuple[ModelSource, str]
UPDATES = 10
WORK = ModelWork(
    token_flops=1e3,
    supervised_token_flops=1e2,
    attention=(AttentionWork(square_flops=2.0), AttentionWork(square_flops=1.0, window=8)),
    peak_flops=1e9,
    on_cpu=True,
    accelerator="cpu",
    formula="6M + A",
)


def train_attempt(rank: int, world_size: int, number: int, runs: list[tuple[str, Spec]], source: ModelSource, samples: str) -> list[TrainedRank]:
    """As `train_runs`, in a launch of that number."""
    os.environ["FTLAUNCH_ATTEMPT"] = str(number)
    return train_runs(rank, world_size, runs, source, samples)


def specs() -> dict[str, Spec]:
    """Run -> spec; all train the same samples in the same updates."""
    plain = make_spec(2, updates=UPDATES, save_steps=6)
    return {
        "plain": with_section(plain, "hardware", price_per_hour=3.6, currency="EUR"),
        "sparse": with_section(plain, "logging", logging_steps=4, report_to=("tensorboard",)),
        "padded": with_section(plain, "batch", layout="padded", micro_batch_tokens=120),
        "unmeasured": with_section(plain, "logging", phases=False),
    }


@pytest.fixture(scope="module")
def trained(pool: RankPool, small: Small, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunRecord]:
    """Each run of `specs` on two ranks."""
    folder = tmp_path_factory.mktemp("metrics")
    for name in specs():
        (folder / name).mkdir()
        RunDir(folder / name).work.write_text(WORK.to_json())
    pool.run(train_attempt, 2, 1, [(str(folder / name), spec) for name, spec in specs().items()], *small, logs=folder / "logs")
    return {name: read_run(folder / name) for name in specs()}


def all_faults(record: RunRecord) -> list[str]:
    """What the schemas have against any line of the run."""
    found = [fault for line in record.updates for fault in faults("metrics", line)]
    found += [fault for lines in record.ranks.values() for line in lines for fault in faults("rank_metrics", line)]
    return found + [fault for event in record.events for fault in faults("events", event)]


def test_every_line_is_as_the_schemas_say(trained: dict[str, RunRecord]) -> None:
    for name, record in trained.items():
        assert all_faults(record) == [], name
        assert sorted(record.ranks) == [0, 1]
    assert [line["update"] for line in trained["sparse"].updates] == [4, 8, 10]


def test_sums_are_whole_with_any_logging_steps(trained: dict[str, RunRecord]) -> None:
    """Of updates without a line, the next one tells."""
    every, sparse = trained["plain"].updates, trained["sparse"].updates
    assert [line["loss"] for line in sparse] == [line["loss"] for line in every if line["update"] in (4, 8, 10)], "its own update's"
    assert [line["phase_updates"] for line in sparse] == [4, 4, 2]
    for count in ("samples", "tokens", "supervised_tokens", "computed_tokens"):
        own = [line[count] for line in every]
        assert own == [line[f"window_{count}"] for line in every]
        assert [line[f"window_{count}"] for line in sparse] == [sum(own[:4]), sum(own[4:8]), sum(own[8:])]
        if count != "computed_tokens":
            assert [line[f"{count}_seen"] for line in sparse] == [sum(own[:4]), sum(own[:8]), sum(own)]
    for line, own in zip(sparse, trained["sparse"].ranks[0], strict=True):
        # Of the rank that writes the line: the other one may have come later to the run.
        assert own["phase_seconds"] > 0.9 * line["window_train_seconds"] >= 0.9 * line["seconds"]
        assert line["tokens_per_s"] == pytest.approx(line["window_tokens"] / line["window_train_seconds"])
    assert sum(line["window_tokens"] for lines in trained["sparse"].ranks.values() for line in lines) == sum(line["tokens"] for line in every)


def test_what_a_token_is_is_told_apart(trained: dict[str, RunRecord]) -> None:
    """L05 and L06: real, computed and supervised tokens, each by its name; a rate of each of the first and the last."""
    packed, padded = trained["plain"].updates, trained["padded"].updates
    for name in ("tokens", "supervised_tokens"):
        assert [line[name] for line in packed] == [line[name] for line in padded], "padding is no token"
    assert all(line["computed_tokens"] > line["tokens"] > line["supervised_tokens"] > 0 for line in padded)
    for line in (*packed, *padded):
        assert line["padding_share"] == pytest.approx(1 - line["tokens"] / line["computed_tokens"])
        assert line["supervised_tokens_per_s"] / line["tokens_per_s"] == pytest.approx(line["supervised_tokens"] / line["tokens"])


def test_mfu_by_hand(trained: dict[str, RunRecord], small: Small) -> None:
    lengths = SampleMix.open({"train": small[1]}).lengths
    for line in trained["plain"].updates:
        ids = [each for lines in trained["plain"].ranks.values() for part in lines[line["update"] - 1]["samples"] for each in part]
        held = [int(lengths[each]) for each in ids]
        seen = 2.0 * sum(n * n for n in held) + sum(n * n if n <= 8 else 8 * (2 * n - 8) for n in held)
        flops = 1e3 * line["tokens"] + 1e2 * line["supervised_tokens"] + seen
        assert line["mfu"] == pytest.approx(flops / (line["window_train_seconds"] * 2 * 1e9))


def test_device_time_and_its_price(trained: dict[str, RunRecord]) -> None:
    for line in trained["plain"].updates:
        assert line["device_seconds"] == pytest.approx(2 * line["phase_seconds"])
        assert line["device_cost"] == pytest.approx(line["device_seconds"] * 1e-3)
        assert line["cost_per_million_supervised_tokens"] == pytest.approx(line["device_cost"] / line["supervised_tokens"] * 1e6)
        assert line["allocated_bytes"] is None and line["reserved_bytes"] is None and line["peak_memory_bytes"] > 10**7
    free = trained["sparse"].updates[0]
    assert free["device_cost"] is None and free["cost_per_million_supervised_tokens"] is None


def test_without_phases_the_rest_is_there(trained: dict[str, RunRecord]) -> None:
    line, own = trained["unmeasured"].updates[-1], trained["unmeasured"].ranks[1][-1]
    assert line["phases"] is None and line["slowest"] is None and own["phases"] is None and "caused_idle_seconds" not in own
    assert line["phase_updates"] == 1 and line["phase_seconds"] >= line["seconds"] and line["device_seconds"] > 0


def test_a_resume_on_other_ranks_keeps_sums_and_rates(pool: RankPool, small: Small, trained: dict[str, RunRecord], tmp_path: Path) -> None:
    """Power fails after update 10; the checkpoint after update 6 goes on, on one rank."""
    folder = trained["sparse"].run_dir.path
    shutil.rmtree(folder / "checkpoints" / "update_00000010")
    pool.run(train_attempt, 1, 2, [(str(folder), specs()["sparse"])], *small, logs=tmp_path)
    record, before = read_run(folder), trained["sparse"]
    assert all_faults(record) == []
    lines = [tuple(line[name] for name in ("update", "attempt", "world_size", "phase_updates")) for line in record.updates]
    assert lines == [(4, 1, 2, 4), (8, 2, 1, 2), (10, 2, 1, 2)]
    (again,) = [event for event in record.events if event["event"] == "done_again"]
    assert (again["update"], again["updates"], again["trained_by"], again["world_size"], again["attempt"]) == (6, 4, 1, 2, 2)
    first, second = attempts(record)
    assert (first.world_size, first.updates, first.redone_updates, second.world_size, second.first_update, second.updates) == (2, 6, 4, 1, 6, 4)
    assert totals(record).supervised_tokens == totals(before).supervised_tokens == before.updates[-1]["supervised_tokens_seen"]
    assert second.tokens_per_s == pytest.approx(sum(line["window_tokens"] for line in record.updates[1:]) / second.train_s)
    assert sum_of(record.ranks[1], "update") == 4, "what the second rank wrote of updates that were lost counts no more"


def test_tensorboard_shows_what_was_kept(trained: dict[str, RunRecord]) -> None:
    """After the resume of the test before: each line once, and of the updates that were lost nothing."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = read_run(trained["sparse"].run_dir.path)
    events = EventAccumulator(str(record.run_dir.tensorboard))
    events.Reload()
    for name, field in (("loss", "loss"), ("learning_rate", "learning_rate"), ("throughput/supervised_tokens_per_s", "supervised_tokens_per_s")):
        assert [(each.step, each.value) for each in events.Scalars(name)] == [(line["update"], pytest.approx(line[field], rel=1e-6)) for line in record.updates]
    assert not (trained["plain"].run_dir.path / "tensorboard").exists()


def sum_of(lines: list[dict[str, Any]], key: str) -> int:
    """Of one field of the lines."""
    return sum(int(line[key]) for line in lines)
