"""Numeric types: what each learns in each stage, and fp16's loss scale, whose overflow must leave no trace but the scale."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path

import pytest
import torch

from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource
from ftcore.engine_fields import MASTER
from ftcore.spec.sections import OptimizerSection, Spec
from tests.ranks.engine_facts import allow_fp16
from tests.ranks.jobs import TrainedRank, train_runs
from tests.ranks.matrix import reference_curves
from tests.ranks.pool import RankPool
from tests.ranks.reference import relative_gap, train_model
from tests.ranks.specs import make_spec, with_section
from tests.ranks.table_runs import TableCase, TableOutcome, TokenTable, same_bits, table_windows, train_tables, write_table_samples

Small = tuple[ModelSource, str]
UPDATES = 6
ALLOWED = [("fp32", stage) for stage in range(4)] + [("bf16_autocast", stage) for stage in range(4)]
ALLOWED += [(precision, stage) for precision in ("bf16", "fp16") for stage in (1, 2, 3)]
SLACK = 3.0
SGD = OptimizerSection(type="sgd", learning_rate=0.5, momentum=0.9, max_grad_norm=1.0)
"""Its change is proportional to the gradient, so that the rounding of one bounds that of the other; adamw's is not."""


def precise_spec(precision: str, stage: int) -> Spec:
    """Six updates of the small model; clipping is always on, since norms are about 10."""
    spec = with_section(make_spec(stage, optimizer=SGD, updates=UPDATES, budget=80), "train", precision=precision)
    spec = with_section(spec, "schedule", lr_scheduler_type="constant", warmup_steps=None)
    # Low enough that no update overflows; what does is looked at below.
    spec = with_section(spec, "zero", overrides={"fp16": {"initial_scale_power": 8}} if precision == "fp16" else {})
    return with_section(spec, "model", dtype={"bf16": "bfloat16", "fp16": "float16"}.get(precision, "float32"))


def train_with_fp16(rank: int, world_size: int, runs: list[tuple[str, Spec]], source: ModelSource, samples: str) -> list[TrainedRank]:
    allow_fp16()
    return train_runs(rank, world_size, runs, source, samples)


def test_every_allowed_type_learns_the_same(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """Against plain torch in double: losses, norms before clipping (so fp16's are unscaled by then) and the parameters' change.

    How far off they may be is told by a plain run in the same type; of autocast, which rounds weights and activations as bf16 does, by bf16's.
    """
    source, path = small
    curves = {precision: reference_curves(source, SampleSet.open(path), precise_spec(precision, 1)) for precision in ("fp32", "bf16", "fp16")}
    rounding = {precision: relative_gap(own.change, double.change) for precision, (own, double) in curves.items()}
    assert 10 * rounding["fp32"] < rounding["fp16"] < rounding["bf16"] / 2 < 0.05
    runs = [(str(tmp_path / f"{precision}_{stage}"), precise_spec(precision, stage)) for precision, stage in ALLOWED]
    trained = pool.run(train_with_fp16, 2, runs, *small, logs=tmp_path / "logs")[0]
    for (precision, stage), result in zip(ALLOWED, trained, strict=True):
        _, double = curves.get(precision, curves["fp32"])
        tolerance = SLACK * rounding.get(precision, rounding["bf16"])
        assert relative_gap(result.change, double.change) <= tolerance, (precision, stage)
        assert result.norms == pytest.approx(double.norms, rel=tolerance), (precision, stage)
        assert result.losses == pytest.approx(double.losses, rel=tolerance), (precision, stage)


OVERFLOWS, STEPS = 5, 3
"""From a scale of 2^20 on: the first one only uses up DeepSpeed's patience (hysteresis 2), four more halve it to 2^16."""


def overflow_case(stage: int) -> TableCase:
    """A gradient norm of about 0.55, which is infinite in fp16 when multiplied by 2^17 = 131,072, and finite with 2^16."""
    spec = with_section(make_spec(stage, updates=OVERFLOWS + STEPS, budget=4), "batch", global_batch_size=8)
    spec = with_section(spec, "optimizer", learning_rate=0.05, weight_decay=0.0, max_grad_norm=0.1)
    spec = with_section(spec, "schedule", lr_scheduler_type="linear", warmup_steps=None)
    spec = with_section(spec, "train", precision="fp16", on_nonfinite="stop")
    return TableCase(spec=spec, tokens=(1,) * 24 + (2,) * 8, x=(0.5, -1.0, 1.0), scale_power=20)


@pytest.fixture(scope="module")
def overflowed(pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, TableOutcome]]:
    folder = tmp_path_factory.mktemp("overflow")
    return pool.run(train_tables, 2, str(folder / "runs"), {str(stage): overflow_case(stage) for stage in (1, 2, 3)}, logs=folder / "logs")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_overflow_skips_everything_alike(stage: int, overflowed: list[dict[str, TableOutcome]], tmp_path: Path) -> None:
    outcomes = [rank[str(stage)] for rank in overflowed]
    first, total = outcomes[0], OVERFLOWS + STEPS
    stepped = [line["stepped"] for line in first.lines]
    skipped = stepped.count(False)
    assert stepped == [False] * skipped + [True] * (total - skipped) and 2 <= skipped < total - 1
    for outcome in outcomes:
        assert not outcome.error
        assert all(same_bits(state, outcome.states[0]) for state in outcome.states[: skipped + 1])
        assert not same_bits(outcome.states[skipped], outcome.states[skipped + 1])
        assert outcome.steps_taken == [0] * skipped + list(range(1, total - skipped + 1))
        assert outcome.next_update == list(range(1, total + 1))
        assert outcome.scales == first.scales
        assert same_bits(outcome.states[-1], first.states[-1])
    assert first.scales[:2] == [2.0**20, 2.0**19] and first.scales[-1] == 2.0 ** (20 - skipped + 1)
    assert [event["update"] for event in first.named("overflow")] == list(range(1, skipped + 1))
    assert [line["learning_rate"] for line in first.lines] == pytest.approx([0.05 * (1 - max(0, done - skipped) / total) for done in range(total)])
    case = overflow_case(stage)
    windows = table_windows(case, tmp_path)[skipped:]
    model = TokenTable([1.0] * len(case.x))
    model.x.data = torch.tensor(case.x).unsqueeze(1)
    rates = [line["learning_rate"] for line in first.lines[skipped:]]
    expected = train_model(model, write_table_samples(tmp_path / "again.arrow", case), windows, rates, case.spec.optimizer)
    assert [line["grad_norm"] for line in first.lines[skipped:]] == pytest.approx(expected.norms, rel=2e-3), "unscaled before clipping"
    assert first.masters() == pytest.approx((torch.tensor(case.x) + expected.change["x"].flatten()).tolist(), abs=1e-3)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_at_the_lowest_scale_the_rule_decides(stage: int, pool: RankPool, tmp_path: Path) -> None:
    """The loss is finite, the slope at 0 of a square root is not: no scale helps."""
    base = overflow_case(stage)
    stops = dataclasses.replace(base, x=(0.5, 0.0, 0.0), root=True, scale_power=0)
    skips = dataclasses.replace(stops, spec=with_section(base.spec, "train", on_nonfinite="skip", max_nonfinite_updates=3))
    falls = dataclasses.replace(stops, scale_power=2)
    cases = {"stops": stops, "skips": skips, "falls": falls}
    for rank in pool.run(train_tables, 2, str(tmp_path / "runs"), cases, logs=tmp_path / "logs"):
        for outcome in rank.values():
            assert all(same_bits(state, outcome.states[0]) for state in outcome.states)
            assert set(outcome.steps_taken) <= {0}
        assert "gradient: the gradient norm is inf at loss scale 1; the step was not taken and no parameter was changed" in rank["stops"].error
        assert "the gradient norm is inf at loss scale 1 in 4 updates in a row" in rank["skips"].error
        assert rank["skips"].next_update == [1, 2, 3]
        assert rank["falls"].scales == [4.0, 2.0, 1.0], "scales above 1 are a search, not a failure"
        assert "at loss scale 1;" in rank["falls"].error


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_scale_survives_a_resume(stage: int, pool: RankPool, small: Small, tmp_path: Path) -> None:
    """The window that doubles the scale is counted in updates: after a resume it must not start anew."""
    spec = with_section(precise_spec("fp16", stage), "checkpoint", save_steps=3)
    spec = with_section(spec, "zero", overrides={"fp16": {"initial_scale_power": 21}})
    whole = pool.run(train_with_fp16, 2, [(str(tmp_path / "whole"), spec)], *small, logs=tmp_path / "logs")[0][0]
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / f"update_{UPDATES:08d}")
    resumed = pool.run(train_with_fp16, 2, [(str(tmp_path / "resumed"), spec)], *small, logs=tmp_path / "logs")[0][0]
    assert resumed.losses == whole.losses
    assert resumed.final.keys() == whole.final.keys()
    assert all(torch.equal(resumed.final[name], value) for name, value in whole.final.items())
    assert any(name.startswith(MASTER) for name in whole.final) and math.isfinite(whole.losses[-1])
