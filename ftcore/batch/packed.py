"""Packed micro-steps: samples end to end, as many as the budget holds."""

from __future__ import annotations

import numpy as np

from ftcore.batch.arrange import arrange
from ftcore.batch.bins import Bins
from ftcore.batch.bound import martello_toth_bound
from ftcore.batch.exchange import balance, fit
from ftcore.batch.first_fit import first_fit
from ftcore.batch.samples import Int64s, Samples

BINS_AT_ONCE = 65_536
"""Of as many updates as have so many together: their arrays stay in the cache."""
MOST_SHARED = 4
FEW = 3
"""Samples a bin below which first fit is tried before exchanges, and alone."""


def least_bins(samples: Samples, budget: int) -> Int64s:
    """Bins that the samples of each update need at the least, [U]: by their tokens, and since a bin holds at most m samples longer than budget / (m + 1)."""
    tokens = samples.tokens[:-1]
    least = np.maximum(1, -(-samples.between(samples.tokens_upto) // budget))
    longest = samples.tokens[samples.starts].max(initial=0) if len(tokens) else 0
    for shared in range(1, MOST_SHARED + 1):
        if longest * (shared + 1) > budget:
            least = np.maximum(least, -(-samples.sums((tokens * (shared + 1) > budget).astype(np.int64)) // shared))
    return least


def pack(samples: Samples, ranks: int, budget: int) -> tuple[Int64s, Int64s]:
    """Micro-steps of each update, [U], and the bin of each sample within its update, [N]: step · ranks + rank.

    Takes the fewest micro-steps for which a deal within the budget is found. No sample may be over it.
    """
    steps = -(-least_bins(samples, budget) // ranks)
    bin_of = np.zeros(len(samples.tokens), dtype=np.int64)
    waiting = np.arange(len(steps))
    while len(waiting):
        failed = [_pack_alike(samples, waiting[steps[waiting] == each], int(each), ranks, budget, bin_of) for each in np.unique(steps[waiting])]
        waiting = np.concatenate(failed)
        for update in waiting.tolist():
            first = samples.starts[update]
            needed = martello_toth_bound(samples.tokens[first : first + samples.counts[update]], budget)
            steps[update] = max(int(steps[update]) + 1, -(-needed // ranks))
    return steps, bin_of[:-1]


def _pack_alike(samples: Samples, updates: Int64s, steps: int, ranks: int, budget: int, bin_of: Int64s) -> Int64s:
    """Writes the bins of updates of as many steps into `bin_of`. Returns the updates for which the bins are too few."""
    failed = []
    at_once = max(1, BINS_AT_ONCE // (steps * ranks))
    for start in range(0, len(updates), at_once):
        some = updates[start : start + at_once]
        bins = Bins(samples, some, steps * ranks, budget)
        lost = _make_fit(bins, some)
        failed.append(some[lost])
        if ranks > 1 or steps > 1:
            arranged = arrange(bins.by_row(bins.costs), ranks)
            bins.reorder((arranged + np.arange(bins.rows)[:, None] * bins.bins).ravel())
            balance(bins, ranks)
        number = np.tile(np.arange(bins.bins), bins.rows)
        # Empty places all write to the sample that is none.
        bin_of[bins.places] = number[:, None]
    return np.concatenate(failed)


def _make_fit(bins: Bins, updates: Int64s) -> Int64s:
    """Deals the rows with a bin over the budget in another way until none is. Returns the rows for which no way was found."""
    over = bins.over()
    is_few = bins.samples.counts[updates[over]] < FEW * bins.bins
    lost = first_fit(bins, updates, over[is_few])
    return np.sort(np.concatenate([lost, first_fit(bins, updates, fit(bins, over[~is_few]))]))
