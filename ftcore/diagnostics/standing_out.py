"""Whether one rank takes longer than the others again and again, or the ranks take turns: a test that noise of any size passes seldom. Plain floats.

Axes: n observations, each with W values, one a rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ftcore.diagnostics.curve import SIGMA_OF_MAD, deviation, median

CERTAIN = 5e-4
"""Chance, over all ranks, at which ranks that are each the slower one in every second observation show what is taken for a slow rank."""
CLEAR = 6.0
"""Standard deviations by which few observations that agree must lie above zero."""


def ahead_of_others(values: Sequence[float]) -> list[float]:
    """By how much each of at least two values is above the median of the others; below zero where it is below."""
    order = sorted(range(len(values)), key=values.__getitem__)
    others = len(values) - 1
    ahead = [0.0] * len(values)
    for place, rank in enumerate(order):
        # Without its own value what follows it moves down by one.
        low, high = (values[order[middle + (place <= middle)]] for middle in ((others - 1) // 2, others // 2))
        ahead[rank] = values[rank] - (low + high) / 2
    return ahead


def standing_out(observed: Sequence[Sequence[float]], *, least: float, fewest: int) -> list[int]:
    """The ranks that take longer than the others in nearly each observation, by at least `least` seconds in half of them; the slowest first.

    `observed` are values of `ahead_of_others`. With less than `fewest` there is none: that many that agree are enough where they lie close together, and more
    where they scatter.
    """
    if len(observed) < fewest:
        return []
    world_size = len(observed[0])
    ahead = list(zip(*observed, strict=True))
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
