"""Every cell that the table of combinations says works: two updates, and the second one again after a resume.

Runs that train the same parameters of the same base must agree on the first loss and gradient, whatever their stage, offload, precision,
layout and optimizer; with the same optimizer on the second loss too: that something runs is not enough (G07).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from statistics import median

import pytest

from ftcore.data.prepared import ModelSource
from launcher.combinations.combination import Combination
from launcher.combinations.table import WORKS
from launcher.combinations.verdict import judge
from tests.ranks.compatibility_cover import cover, held, kind_of, name_of, spec_of, with_companions, working_cells
from tests.ranks.compatibility_jobs import CellOutcome, train_cells
from tests.ranks.pool import RankPool

Small = tuple[ModelSource, str]
Outcomes = dict[Combination, CellOutcome]
A_JOB = 10
"""Combinations that one pair of ranks goes through."""
TOLERANCE = {"fp32": 1e-4, "bf16": 3e-3, "fp16": 1e-3, "bf16_autocast": 3e-3}
"""Of losses, relative to those in fp32; a norm, which squares what rounding does, may be off by ten times that."""
CHOSEN = with_companions(cover(working_cells()))


@pytest.fixture(scope="module")
def outcomes(pool: RankPool, small: Small, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = tmp_path_factory.mktemp("cells")
    found: Outcomes = {}
    for first in range(0, len(CHOSEN), A_JOB):
        part = {name_of(each): each for each in CHOSEN[first : first + A_JOB]}
        specs = {name: spec_of(each) for name, each in part.items()}
        told = pool.run(train_cells, 2, str(folder), specs, *small, logs=folder / f"logs_{first}")
        found |= {part[name]: outcome for name, outcome in told[0].items()}
        assert not [f"{name}: {outcome.error}" for rank in told for name, outcome in rank.items() if outcome.error]
    return found


def test_every_cell_that_works_is_among_those_tried(outcomes: Outcomes) -> None:
    assert all(judge(each).word == WORKS for each in outcomes)
    tried = [held(each.values()) for each in outcomes]
    assert not [sorted(cell) for cell in working_cells() if not any(cell <= values for values in tried)]


def test_losses_are_finite_and_everything_trained_moves(outcomes: Outcomes) -> None:
    for each, outcome in outcomes.items():
        assert len(outcome.losses) == 2 and all(map(math.isfinite, [*outcome.losses, *outcome.norms])), name_of(each)
        assert not outcome.unchanged, (name_of(each), outcome.unchanged)


def test_a_resume_goes_on_to_the_bit(outcomes: Outcomes) -> None:
    """G04 for the bases in 4 and 8 bits: the checkpoint holds adapters alone."""
    for each, outcome in outcomes.items():
        assert outcome.resumed_losses == outcome.losses and not outcome.different, (name_of(each), outcome.different)


def _groups(outcomes: Outcomes, key: Callable[[Combination], Hashable]) -> list[Outcomes]:
    found: dict[Hashable, Outcomes] = {}
    for each, outcome in outcomes.items():
        found.setdefault(key(each), {})[each] = outcome
    return list(found.values())


def _off(group: Outcomes, value: Callable[[CellOutcome], float], slack: float = 1.0) -> list[str]:
    """Members that are farther from the middle of those in fp32 than the rounding of their precision explains; where none is in fp32, from that of all."""
    exact = [value(outcome) for each, outcome in group.items() if each.precision == "fp32"]
    middle = median(exact or [value(outcome) for outcome in group.values()])
    return [
        f"{name_of(each)}: {value(outcome)}, not {middle}"
        for each, outcome in group.items()
        if abs(value(outcome) - middle) > slack * TOLERANCE[each.precision] * middle
    ]


def test_the_first_loss_is_the_base_s(outcomes: Outcomes) -> None:
    """G07: LoRA's first matrices are zero, so every method begins at the loss of its base."""
    for group in _groups(outcomes, lambda each: each.base):
        assert not _off(group, lambda outcome: outcome.losses[0])


def test_the_first_gradient_is_the_same(outcomes: Outcomes) -> None:
    for group in _groups(outcomes, kind_of):
        assert len(group) > 1 and not _off(group, lambda outcome: outcome.norms[0], slack=10)


def test_the_first_step_is_the_same(outcomes: Outcomes) -> None:
    for group in _groups(outcomes, lambda each: (*kind_of(each), each.optimizer)):
        assert not _off(group, lambda outcome: outcome.losses[1])
