"""The update's loss and gradient in DeepSpeed's hands, from known sums: C01, C06, L07, L08, and what an empty micro-step adds."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from ftcore import dist
from ftcore.batch.collate import collate
from ftcore.data.cache import Sample
from ftcore.engine import Engine, join_process_group
from ftcore.engine_fields import MASTER
from ftcore.spec.errors import TrainingError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import OptimizerSection
from ftcore.train.nonfinite import NonFiniteRule, explain
from ftcore.train.step import Update, run_update
from tests.ranks.jobs import make_run, whole_state
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec
from tests.ranks.table_runs import TokenTable

CASE = json.loads((Path(__file__).parents[1] / "cases" / "loss_case.json").read_text())
PLAIN_SGD = OptimizerSection(type="sgd", learning_rate=1.0, max_grad_norm=0.0)

LOSSES = [4.0 / 1, 3.0 / 3, 0.5]
"""By token id: the loss of a token in the case's micro-steps with 1, 3 and 8 supervised tokens."""


def known_batches(rank: int) -> list:
    def rows(token: int, count: int) -> list[Sample]:
        return [Sample(ids=np.array([token, 0], dtype=np.int32), spans=np.array([[1, 2]], dtype=np.int32), row=1) for _ in range(count)]

    if rank == 0:
        return [collate(rows(0, 1)), collate(rows(1, 3))]
    return [collate([]), collate(rows(2, 8))]


def run_case(rank: int, world_size: int, folder: str, stage: int, poison: float | None) -> tuple[float, float, list[float], str]:
    """Loss, gradient norm, and x after one update of SGD with rate 1; `poison` is x of token 2, where 0 makes the gradient infinite."""
    ranks = dist.start()
    spec = make_spec(stage, optimizer=PLAIN_SGD)
    run_dir = make_run(Path(folder), spec, world_size) if rank == 0 else RunDir(Path(folder))
    dist.barrier()
    join_process_group(ranks)
    model = TokenTable(LOSSES, root=poison == 0)
    if poison is not None:
        model.x.data[2] = poison
    engine = Engine(model, [{"params": list(model.parameters()), "weight_decay": 0.0}], run_dir.ds_config, ranks)
    engine.train()
    refused, loss, norm = "", 0.0, 0.0
    try:
        result = run_update(engine, known_batches(rank), Update(weight_sum=12, learning_rate=1.0, check_count=True))
        [loss_sum] = dist.sum_over_ranks([float(result.loss_sums.sum())], ranks)
        loss, norm = loss_sum / 12, float(result.outcome.grad_norm)
        if not result.outcome.applied:
            NonFiniteRule(spec.train).refused(explain(engine, result, [[0], [1]]))
    except TrainingError as error:
        refused = str(error)
    x = whole_state(engine)[f"{MASTER}/x"].tolist()
    dist.barrier()
    dist.stop()
    return loss, norm, x, refused


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_loss_case(stage: int, pool: RankPool, tmp_path: Path) -> None:
    outcomes = pool.run(run_case, 2, str(tmp_path / "run"), stage, None, logs=tmp_path / "logs")
    start = [-math.log(math.exp(loss) - 1) for loss in LOSSES]
    gradient = [-count / 12 / (1 + math.exp(x)) for count, x in zip([1, 3, 8], start, strict=True)]
    for loss, norm, x, refused in outcomes:
        assert not refused
        assert loss == pytest.approx(CASE["right_global_per_token"], rel=1e-6)
        assert norm == pytest.approx(math.hypot(*gradient), rel=1e-5)
        assert x == pytest.approx([before - slope for before, slope in zip(start, gradient, strict=True)], rel=1e-5)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("poison", "reason"), [(math.nan, "the loss is nan; the step was not taken and no parameter was changed"), (0.0, "the gradient norm is")]
)
def test_what_is_not_finite_changes_nothing(stage: int, poison: float, reason: str, pool: RankPool, tmp_path: Path) -> None:
    """All ranks refuse, also the one whose own part was fine."""
    outcomes = pool.run(run_case, 2, str(tmp_path / "run"), stage, poison, logs=tmp_path / "logs")
    start = [-math.log(math.exp(loss) - 1) for loss in LOSSES]
    for _, _, x, refused in outcomes:
        assert reason in refused
        assert x[:2] == pytest.approx(start[:2], rel=1e-6)


def wrong_count(rank: int, world_size: int, folder: str) -> str:
    ranks = dist.start()
    run_dir = make_run(Path(folder), make_spec(2, optimizer=PLAIN_SGD), world_size) if rank == 0 else RunDir(Path(folder))
    dist.barrier()
    join_process_group(ranks)
    model = TokenTable(LOSSES)
    engine = Engine(model, [{"params": list(model.parameters()), "weight_decay": 0.0}], run_dir.ds_config, ranks)
    try:
        run_update(engine, known_batches(rank), Update(weight_sum=13, learning_rate=1.0, check_count=True))
    except TrainingError as error:
        return str(error)
    return ""


def test_a_plan_that_lies_is_found_out(pool: RankPool, tmp_path: Path) -> None:
    for message in pool.run(wrong_count, 2, str(tmp_path / "run"), logs=tmp_path / "logs"):
        assert "the ranks hold 12 supervised tokens, the plan says 13" in message
