"""Robust statistics of a short stretch of a loss curve; plain floats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

SIGMA_OF_MAD = 1.4826
"""Standard deviation of normal noise divided by its median absolute deviation."""


def median(values: Sequence[float]) -> float:
    """The middle value; the mean of both middle ones of an even number."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def deviation(values: Sequence[float], centre: float) -> float:
    """Median absolute deviation from `centre` (MAD)."""
    return median([abs(value - centre) for value in values])


def noise_of_steps(values: Sequence[float]) -> float:
    """Standard deviation of the noise, from the differences of neighbours, so that a trend doesn't count."""
    steps = [after - before for before, after in itertools.pairwise(values)]
    return SIGMA_OF_MAD * deviation(steps, median(steps)) / math.sqrt(2)


def line_residuals(values: Sequence[float]) -> list[float]:
    """What is left of `values` when their least-squares line is taken away."""
    count = len(values)
    middle, mean = (count - 1) / 2, sum(values) / count
    spread = count * (count * count - 1) / 12
    slope = sum((place - middle) * value for place, value in enumerate(values)) / spread
    return [value - mean - slope * (place - middle) for place, value in enumerate(values)]


def sign_changes(values: Sequence[float]) -> int:
    """How often neighbours lie on two sides of zero."""
    return sum(before * after < 0 for before, after in itertools.pairwise(values))


def rise_score(values: Sequence[float]) -> float:
    """Mann and Kendall's test of a rising trend: standard deviations by which pairs that rise outnumber pairs that fall.

    Kendall, Rank Correlation Methods (1975). No ties are expected in losses.
    """
    count = len(values)
    surplus = sum((after > before) - (after < before) for place, before in enumerate(values) for after in values[place + 1 :])
    return surplus / math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
