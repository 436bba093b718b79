"""The invariance matrix: micro-steps, ranks, stages, layouts, methods and precisions in pairs, each against plain torch on one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource
from tests.ranks.jobs import train_runs
from tests.ranks.matrix import AXES, Split, budget_for, every_split, pairwise_splits, reference_curves, spec_of, windows_of, write_short_samples
from tests.ranks.pool import RankPool
from tests.ranks.reference import Curve, relative_gap
from tests.ranks.specs import with_section

Small = tuple[ModelSource, str]
UPDATES = 4
SLACK = {"fp32": 10.0, "bf16": 2.0}
"""Of the parameters' change, times the distance between the plain run in that precision and the one in double. Most of bf16's
comes from the type of weights and activations, which no split changes; that of fp32 from the order of sums, which every split does."""
LOSS_SLACK = 10.0
"""Of losses in bf16, alike. A mean over hundreds of tokens hides most of their rounding, by chance more or less."""


def loss_gap(one: list[float], other: list[float]) -> float:
    """Largest relative difference."""
    return max(abs(a - b) / abs(b) for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> SampleSet:
    return write_short_samples(tmp_path_factory.mktemp("short") / "samples.arrow")


@pytest.fixture(scope="module")
def samples_path(samples: SampleSet, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("short_again") / "samples.arrow"
    assert write_short_samples(path).fingerprint == samples.fingerprint
    return str(path)


@pytest.fixture(scope="module")
def references(small: Small, samples: SampleSet) -> dict[tuple[str, str], tuple[Curve, Curve]]:
    """(Method, precision) -> the curves in that precision and in double."""
    curves = {}
    for method in AXES["method"]:
        for precision in AXES["precision"]:
            split = Split(world_size=1, micro_steps=1, stage=1, coalesce=False, layout="packed", method=str(method), precision=str(precision))
            curves[split.method, split.precision] = reference_curves(small[0], samples, spec_of(split, updates=UPDATES))
    return curves


def test_the_chosen_splits_cover_every_pair_of_every_two_axes() -> None:
    chosen, possible = pairwise_splits(), every_split()
    names = list(AXES)
    for first in names:
        for second in names[names.index(first) + 1 :]:
            wanted = {(getattr(split, first), getattr(split, second)) for split in possible}
            assert {(getattr(split, first), getattr(split, second)) for split in chosen} == wanted
    assert len(chosen) < len(possible) / 20


@pytest.mark.parametrize("world_size", AXES["world_size"])
def test_no_split_changes_the_update(
    world_size: int, pool: RankPool, small: Small, samples: SampleSet, samples_path: str, references: dict[tuple[str, str], tuple[Curve, Curve]], tmp_path: Path
) -> None:
    splits = [split for split in pairwise_splits() if split.world_size == world_size]
    specs = [spec_of(split, updates=UPDATES) for split in splits]
    budgets = [budget_for(samples, windows_of(samples, spec), split) for spec, split in zip(specs, splits, strict=True)]
    runs = [(str(tmp_path / str(index)), with_section(spec, "batch", micro_batch_tokens=budgets[index])) for index, spec in enumerate(specs)]
    results = pool.run(train_runs, world_size, runs, small[0], samples_path, logs=tmp_path / "logs")
    for index, split in enumerate(splits):
        own, double = references[split.method, split.precision]
        trained, slack = results[0][index], SLACK[split.precision]
        steps = [rank_results[index].micro_steps for rank_results in results]
        assert all(rank_steps == steps[0] for rank_steps in steps), split
        assert max(steps[0]) == split.micro_steps, split
        if split.precision == "fp32":
            assert trained.losses == pytest.approx(double.losses, rel=1e-5), split
            assert trained.norms == pytest.approx(double.norms, rel=1e-4), split
        else:
            assert loss_gap(trained.losses, double.losses) <= LOSS_SLACK * loss_gap(own.losses, double.losses), split
        gap, rounding = relative_gap(trained.change, double.change), relative_gap(own.change, double.change)
        assert gap <= slack * rounding, (split, gap, rounding)
