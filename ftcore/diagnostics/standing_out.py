"""Whether one rank is late again and again, or the ranks take turns: a test that noise of any size passes seldom. Plain floats.

Axes: n observations, each with a value a rank: seconds for which another rank waited for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftcore.diagnostics.curve import SIGMA_OF_MAD, deviation, median

LEAST_SHARE, LEAST_S = 0.08, 0.002
"""Of the time that the observations took, and seconds of each: less is not worth telling, and smaller than what rank 0 does more than others in a log."""
CERTAIN = 5e-4
"""Chance at which a rank that is late in every second observation is taken for a slow one."""
CLEAR = 6.0
"""Standard deviations by which few observations that agree must lie above zero."""


def leads(values: Sequence[Sequence[float]], rank: int) -> list[float]:
    """By how much the others waited longer for `rank` than for the rank after it, in each observation; below zero where another rank was later."""
    return [each[rank] - max(value for other, value in enumerate(each) if other != rank) for each in values]


def standing_out(values: Sequence[Sequence[float]], seconds: Sequence[float], fewest: int) -> int | None:
    """The rank that is later than all others in nearly each of n observations of `seconds`, by enough to matter; None: no rank."""
    if len(values) < fewest or len(values[0]) < 2:
        return None
    totals = [median([each[rank] for each in values]) for rank in range(len(values[0]))]
    rank = max(range(len(totals)), key=totals.__getitem__)
    ahead = leads(values, rank)
    typical = median(ahead)
    if typical < LEAST_S or typical < LEAST_SHARE * median(seconds):
        return None
    spread = SIGMA_OF_MAD * deviation(ahead, typical)
    is_clear = min(ahead) > 0 and typical > CLEAR * spread
    return rank if is_clear or chance(sum(lead > 0 for lead in ahead), len(ahead)) <= CERTAIN else None


def chance(hits: int, of: int) -> float:
    """Probability of at least so many hits, each as likely as a miss."""
    return sum(math.comb(of, each) for each in range(hits, of + 1)) / 2.0**of
