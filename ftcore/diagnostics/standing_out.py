"""Whether one rank takes longer than the others again and again, or the ranks take turns: a test that noise of any size passes seldom. Plain floats.

Axes: n observations, each with W values, the seconds that each rank took for its own work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftcore.diagnostics.curve import SIGMA_OF_MAD, deviation, median

CERTAIN = 5e-4
"""Chance, over all ranks, at which ranks that are each the slower one in every second observation show what is taken for a slow rank."""
CLEAR = 6.0
"""Standard deviations by which few observations that agree must lie above zero."""


def ahead_of_others(values: Sequence[float], rank: int) -> float:
    """By how much a rank's value is above the median of the others'; below zero where it is the faster one."""
    return values[rank] - median([value for other, value in enumerate(values) if other != rank])


def standing_out(values: Sequence[Sequence[float]], *, least: float, fewest: int) -> list[int]:
    """The ranks that take longer than the others in nearly each observation, by at least `least` seconds in half of them; the slowest first.

    None with less than `fewest` observations: that many that agree are enough where they lie close together, and more where they scatter.
    """
    if len(values) < fewest or len(values[0]) < 2:
        return []
    world_size = len(values[0])
    ahead = [[ahead_of_others(each, rank) for each in values] for rank in range(world_size)]
    slow = [rank for rank in range(world_size) if _stands_out(ahead[rank], least, CERTAIN / world_size)]
    return sorted(slow, key=lambda rank: -median(ahead[rank]))


def _stands_out(ahead: Sequence[float], least: float, certain: float) -> bool:
    typical = median(ahead)
    if typical < least:
        return False
    is_clear = min(ahead) > 0 and typical > CLEAR * SIGMA_OF_MAD * deviation(ahead, typical)
    return is_clear or chance(sum(each > 0 for each in ahead), len(ahead)) <= certain


def chance(hits: int, of: int) -> float:
    """Probability of at least so many hits, each as likely as a miss."""
    return sum(math.comb(of, each) for each in range(hits, of + 1)) / 2.0**of
