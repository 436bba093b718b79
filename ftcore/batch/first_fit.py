"""First fit decreasing, for updates whose bins hold few samples each: there it comes closer to the fewest bins than balance and exchanges do."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from ftcore.batch.bins import Bins
from ftcore.batch.samples import Int64s

MOST_SAMPLES = 1 << 14
"""Of an update for which it is tried: of more than these, exchanges find the room, and taking one out of the middle of a list grows dear."""


def first_fit(bins: Bins, updates: Int64s, rows: Int64s) -> Int64s:
    """Fills the bins of these rows anew; `updates` [R] are those of all rows. Returns the rows for which the bins are too few: theirs are as before."""
    samples = bins.samples
    lost: list[int] = []
    for row in rows.tolist():
        first, count = int(samples.starts[updates[row]]), int(samples.counts[updates[row]])
        filled = _fill(samples.tokens[first : first + count][::-1].tolist(), bins.budget, bins.bins) if count <= MOST_SAMPLES else None
        if filled is None:
            lost.append(row)
            continue
        bins.grow(max(map(len, filled)))
        places = np.full((bins.bins, bins.places.shape[1]), samples.none, dtype=np.int64)
        for number, held in enumerate(filled):
            places[number, : len(held)] = held
        # Sizes were counted from the shortest, the last of the update.
        places[places < samples.none] = first + count - 1 - places[places < samples.none]
        bins.replace(row * bins.bins + np.arange(bins.bins), places)
    return np.asarray(lost, dtype=np.int64)


def _fill(sizes: list[int], budget: int, bins: int) -> list[list[int]] | None:
    """Indices of the sizes, which rise, by bin; None when the bins are too few. Bin after bin takes the largest that is left and fits."""
    left = list(range(len(sizes)))
    filled: list[list[int]] = []
    while left:
        if len(filled) == bins:
            return None
        room, held = budget, []
        while left and sizes[0] <= room:
            at = bisect_right(sizes, room) - 1
            room -= sizes.pop(at)
            held.append(left.pop(at))
        filled.append(held)
    return filled
