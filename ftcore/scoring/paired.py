"""The difference between two results over the same rows, with an interval: a paired bootstrap.

Axes: N rows, R resamples of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
SEED = 0
CONFIDENCE = 0.95
FEWEST_ROWS = 5
"""With fewer rows no interval is given: resampling them can't show how much other rows would differ."""
_CHUNK_DRAWS = 2_000_000
"""Rows drawn at a time, which bounds memory."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """After minus before."""

    value: float
    low: float | None
    """Lower end of the 95 % interval; None with fewer than FEWEST_ROWS rows."""
    high: float | None

    @property
    def holds_zero(self) -> bool:
        """Whether the interval can't tell the two apart."""
        return self.low is None or self.high is None or self.low <= 0.0 <= self.high


def paired_difference(before_N: Floats, after_N: Floats, weights_N: Floats, *, seed: int = SEED, resamples: int = RESAMPLES) -> Difference:
    """sum(after - before) / sum(weights), with the 95 % percentile interval over resampled rows (Efron 1979).

    For a loss per token the values are each row's sum and the weights its tokens; for a mean over rows the weights are 1.
    The same rows are drawn for both, and the same seed gives the same interval.
    """
    gaps = after_N - before_N
    value = float(gaps.sum() / weights_N.sum())
    rows = len(gaps)
    if rows < FEWEST_ROWS:
        return Difference(value, None, None)
    random = np.random.default_rng(seed)
    chunk = max(1, _CHUNK_DRAWS // rows)
    drawn: list[Floats] = []
    for start in range(0, resamples, chunk):
        chosen_RN = random.integers(rows, size=(min(chunk, resamples - start), rows))
        drawn.append(gaps[chosen_RN].sum(axis=1) / weights_N[chosen_RN].sum(axis=1))
    low, high = np.quantile(np.concatenate(drawn), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Difference(value, float(low), float(high))
