"""The objective never depends on how the work was split: real ranks against a plain single-process reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ftcore.batch.window import UpdateSequence
from ftcore.data.prepared import ModelSource
from ftcore.spec.sections import OptimizerSection
from ftcore.train.schedule import learning_rate_factor
from tests.ranks.jobs import train_runs
from tests.ranks.pool import RankPool
from tests.ranks.reference import Curve, relative_gap, train_reference
from tests.ranks.specs import make_spec

UPDATES = 20
OPTIMIZERS = {
    "sgd": OptimizerSection(type="sgd", learning_rate=0.5, momentum=0.9, max_grad_norm=1.0),
    "adamw": OptimizerSection(type="adamw", learning_rate=3e-3, weight_decay=0.1, max_grad_norm=1.0),
}
BUDGETS = (40, 130)
"""micro_batch_tokens: many micro-steps with fillers, and few."""


@pytest.fixture(scope="module")
def references(small: tuple[ModelSource, str]) -> dict[str, tuple[Curve, Curve]]:
    """Optimizer -> the reference's curve in float32 and in float64."""
    from ftcore.data.cache import SampleSet
    from ftcore.data.mix import SampleMix

    source, path = small
    samples = SampleSet.open(path)
    curves = {}
    for name, section in OPTIMIZERS.items():
        spec = make_spec(0, optimizer=section, budget=BUDGETS[0], updates=UPDATES)
        sequence = UpdateSequence(SampleMix({"train": samples}), batch=spec.batch, train=spec.train)
        updates = range(UPDATES)
        windows = [sequence.window(update).sample_ids.tolist() for update in updates]
        rates = [section.learning_rate * learning_rate_factor(spec.schedule, update, UPDATES) for update in updates]
        curves[name] = tuple(train_reference(source.path, samples, windows, rates, section, dtype) for dtype in (torch.float32, torch.float64))
    return curves


SPLITS = [(world_size, stage, False) for world_size in (1, 2, 4) for stage in (0, 1, 2, 3)] + [(2, 2, True), (4, 2, True), (2, 3, True)]


@pytest.mark.parametrize(("world_size", "stage", "coalesce"), SPLITS)
def test_split_invariance(
    world_size: int, stage: int, coalesce: bool, pool: RankPool, small: tuple[ModelSource, str], references: dict[str, tuple[Curve, Curve]], tmp_path: Path
) -> None:
    combinations = [(optimizer, budget) for optimizer in OPTIMIZERS for budget in BUDGETS]
    specs = [make_spec(stage, optimizer=OPTIMIZERS[optimizer], budget=budget, updates=UPDATES, coalesce=coalesce) for optimizer, budget in combinations]
    runs = [(str(tmp_path / str(index)), spec) for index, spec in enumerate(specs)]
    results = pool.run(train_runs, world_size, runs, *small, logs=tmp_path / "logs")
    for index, (optimizer, budget) in enumerate(combinations):
        single, double = references[optimizer]
        trained = results[0][index]
        assert trained.losses == pytest.approx(single.losses, rel=1e-5), (optimizer, budget)
        assert trained.norms == pytest.approx(single.norms, rel=1e-4), (optimizer, budget)
        change = {name: trained.change[name].view(value.shape) for name, value in double.change.items()}
        tolerance = 10 * relative_gap(single.change, double.change)
        assert relative_gap(change, double.change) <= tolerance, (optimizer, budget, tolerance)
        steps = [rank_results[index].micro_steps for rank_results in results]
        assert all(rank_steps == steps[0] for rank_steps in steps)
