"""Resume: bit-equal at the same world size and stage, within the precision's tolerance at another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from ftcore.checkpoint import capture
from ftcore.checkpoint.layout import newest_first
from ftcore.checkpoint.manifest import read_manifest
from ftcore.data.prepared import ModelSource
from ftcore.spec.sections import OptimizerSection, Spec
from tests.ranks.engine_facts import allow_fp16
from tests.ranks.jobs import TrainedRank, read_lines, train_runs
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section

UPDATES, SAVED = 12, 5
SGD = OptimizerSection(type="sgd", learning_rate=0.3, momentum=0.9)

Small = tuple[ModelSource, str]


def unbroken(pool: RankPool, small: Small, spec: Spec, world_size: int, folder: Path) -> list[TrainedRank]:
    return [ranks[0] for ranks in pool.run(train_runs, world_size, [(str(folder), spec)], *small, logs=folder / "logs")]


def copy_at(run: Path, to: Path, update: int) -> None:
    """A run folder as it was when killed after its checkpoint at `update`: later checkpoints gone, metrics longer."""
    shutil.copytree(run, to)
    for path in (to / "checkpoints").iterdir():
        if path.is_dir() and path.name != f"update_{update:08d}":
            shutil.rmtree(path)


def assert_equal_state(one: TrainedRank, other: TrainedRank) -> None:
    assert one.final.keys() == other.final.keys()
    different = [name for name, value in other.final.items() if not torch.equal(one.final[name], value)]
    assert not different


@pytest.mark.parametrize(
    ("stage", "precision", "method", "optimizer"),
    [
        (0, "fp32", "full", None),
        (1, "fp32", "full", None),
        (2, "fp32", "full", SGD),
        (3, "fp32", "full", None),
        (1, "bf16", "full", None),
        (2, "bf16", "full", None),
        (3, "bf16", "full", None),
        (2, "fp32", "lora", None),
        (3, "fp32", "lora", None),
        (3, "bf16", "lora", None),
    ],
)
def test_resume_is_bit_equal(stage: int, precision: str, method: str, optimizer: OptimizerSection | None, pool: RankPool, small: Small, tmp_path: Path) -> None:
    spec = make_spec(stage, updates=UPDATES, precision=precision, method=method, optimizer=optimizer, save_steps=SAVED)
    whole = unbroken(pool, small, spec, 2, tmp_path / "whole")
    copy_at(tmp_path / "whole", tmp_path / "resumed", SAVED)
    resumed = unbroken(pool, small, spec, 2, tmp_path / "resumed")
    assert_equal_state(resumed[0], whole[0])
    assert resumed[0].losses == whole[0].losses
    assert [rank.samples for rank in resumed] == [rank.samples for rank in whole]
    assert any(name.startswith(("exp_avg/", "momentum_buffer/")) for name in whole[0].final)


@pytest.mark.parametrize(
    ("before", "after", "method"),
    [
        ((2, 2), (1, 1), "full"),
        ((2, 1), (3, 4), "full"),
        ((3, 2), (2, 4), "full"),
        ((3, 4), (0, 1), "full"),
        ((0, 2), (3, 2), "full"),
        ((3, 2), (2, 1), "lora"),
    ],
)
def test_resume_elsewhere(before: tuple[int, int], after: tuple[int, int], method: str, pool: RankPool, small: Small, tmp_path: Path) -> None:
    """F12: stage and ranks may change: same samples in every update, so the same global batch, and the same losses (fp32)."""
    (stage, world_size), (new_stage, new_world_size) = before, after
    spec = make_spec(stage, updates=UPDATES, save_steps=SAVED, method=method)
    if method == "lora":  # dropout's random numbers belong to a rank, so they can't be the same on other ranks
        spec = without_dropout(spec)
    whole = unbroken(pool, small, spec, world_size, tmp_path / "whole")
    copy_at(tmp_path / "whole", tmp_path / "resumed", SAVED)
    moved = make_spec(new_stage, updates=UPDATES, save_steps=SAVED, method=method)
    resumed = unbroken(pool, small, without_dropout(moved), new_world_size, tmp_path / "resumed")
    assert resumed[0].losses == pytest.approx(whole[0].losses, rel=1e-5)
    for update in range(SAVED + 1, UPDATES + 1):
        assert ids(resumed, update) == ids(whole, update)


def without_dropout(spec: Spec) -> Spec:
    return with_section(spec, "method", lora_dropout=0.0)


@pytest.mark.parametrize("world_size", [1, 2])
def test_resume_inside_warm_up(world_size: int, pool: RankPool, small: Small, tmp_path: Path) -> None:
    """F11: the learning rate neither restarts nor jumps, on as many ranks or on others."""
    spec = with_section(make_spec(2, updates=10, save_steps=4), "schedule", lr_scheduler_type="linear", warmup_steps=8)
    unbroken(pool, small, spec, 2, tmp_path / "whole")
    copy_at(tmp_path / "whole", tmp_path / "resumed", 4)
    unbroken(pool, small, spec, world_size, tmp_path / "resumed")
    whole, resumed = ([line["learning_rate"] for line in read_lines(tmp_path / run / "metrics.jsonl")] for run in ("whole", "resumed"))
    peak = spec.optimizer.learning_rate
    assert resumed == whole and whole == pytest.approx([peak * factor for factor in (0, 1 / 8, 2 / 8, 3 / 8, 4 / 8, 5 / 8, 6 / 8, 7 / 8, 1, 1 / 2)])
    assert '"resumed", ' in (tmp_path / "resumed" / "events.jsonl").read_text()


def train_with_accelerator_state(rank: int, world_size: int, runs: list[tuple[str, Spec]], source: ModelSource, samples: str) -> list[TrainedRank]:
    """`train_runs` whose checkpoints hold the random state of an accelerator, as those written on one do."""
    plain = capture.capture_rng
    capture.capture_rng = lambda: json.dumps({**json.loads(plain()), "accelerator": "AAAA"})
    return train_runs(rank, world_size, runs, source, samples)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is no such accelerator to be without")
def test_resume_on_another_kind_of_device_is_told(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """F14: once, in events.jsonl."""
    spec = make_spec(2, updates=2, save_steps=1)
    pool.run(train_with_accelerator_state, 2, [(str(tmp_path / "whole"), spec)], *small, logs=tmp_path / "logs")
    copy_at(tmp_path / "whole", tmp_path / "resumed", 1)
    unbroken(pool, small, spec, 2, tmp_path / "resumed")
    notes = [line["text"] for line in read_lines(tmp_path / "resumed" / "events.jsonl") if line["event"] == "note"]
    assert len([text for text in notes if "written on an accelerator and the run goes on on the CPU" in text]) == 1


def ids(ranks: list[TrainedRank], update: int) -> list[int]:
    """Sample ids of the update over all ranks that logged it."""
    return sorted(sample for rank in ranks for part in rank.samples.get(update, []) for sample in part)


OPTIMIZER_ON_CPU = {"offload_optimizer": "cpu"}


@pytest.mark.parametrize(("stage", "offloads"), [(1, OPTIMIZER_ON_CPU), (2, OPTIMIZER_ON_CPU), (3, OPTIMIZER_ON_CPU | {"offload_param": "cpu"})])
def test_resume_with_offload_is_bit_equal(stage: int, offloads: dict[str, str], pool: RankPool, small: Small, tmp_path: Path) -> None:
    spec = with_section(make_spec(stage, updates=UPDATES, precision="bf16", save_steps=SAVED), "zero", **offloads)
    whole = unbroken(pool, small, spec, 2, tmp_path / "whole")
    plain = unbroken(pool, small, make_spec(stage, updates=UPDATES, precision="bf16"), 2, tmp_path / "plain")
    copy_at(tmp_path / "whole", tmp_path / "resumed", SAVED)
    resumed = unbroken(pool, small, spec, 2, tmp_path / "resumed")
    assert_equal_state(resumed[0], whole[0])
    assert whole[0].losses == pytest.approx(plain[0].losses, rel=5e-3)


def train_in_fp16(rank: int, world_size: int, runs: list[tuple[str, Spec]], source: ModelSource, samples: str) -> tuple[list[TrainedRank], dict[str, float]]:
    """`train_runs` where DeepSpeed is told that this machine has fp16; with the loss scale of the run's newest checkpoint."""
    allow_fp16()
    trained = train_runs(rank, world_size, runs, source, samples)
    newest = newest_first(Path(runs[0][0]) / "checkpoints")[0]
    return trained, read_manifest(newest).loss_scale


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_resume_in_fp16_is_bit_equal(stage: int, pool: RankPool, small: Small, tmp_path: Path) -> None:
    """The loss scale and its counters too."""
    spec = with_section(make_spec(stage, updates=UPDATES, save_steps=SAVED), "model", dtype="float16")
    spec = with_section(spec, "train", precision="fp16", on_nonfinite="skip", max_nonfinite_updates=UPDATES)
    whole, scale = pool.run(train_in_fp16, 2, [(str(tmp_path / "whole"), spec)], *small, logs=tmp_path / "logs_1")[0]
    copy_at(tmp_path / "whole", tmp_path / "resumed", SAVED)
    resumed, scale_after = pool.run(train_in_fp16, 2, [(str(tmp_path / "resumed"), spec)], *small, logs=tmp_path / "logs_2")[0]
    assert_equal_state(resumed[0], whole[0])
    assert resumed[0].losses == whole[0].losses
    assert scale == scale_after and scale["cur_iter"] == UPDATES
