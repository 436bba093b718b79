"""How many bins no packing can do without."""

from __future__ import annotations

import numpy as np

from ftcore.batch.samples import Int32s, Int64s


def martello_toth_bound(lengths: Int32s | Int64s, budget: int) -> int:
    """Bound L2 of Martello and Toth (Knapsack Problems, 1990, section 8.3.2, equations 8.19 and 8.20) on the bins of `budget` tokens that hold the samples.

    For each K up to budget / 2: samples longer than budget / 2 have a bin each; those of K to budget / 2 fit beside the ones of at most budget - K,
    and what doesn't needs more bins. The bound is the largest over all K. No sample may be over the budget.
    """
    sizes = np.sort(lengths.astype(np.int64))
    upto = np.append(0, np.cumsum(sizes))
    small = int(np.searchsorted(2 * sizes, budget, side="right"))
    smallest = np.unique(np.append(sizes[:small], 0))
    first = np.searchsorted(sizes, smallest)
    alone = np.searchsorted(sizes, budget - smallest, side="right")
    shared = alone - small
    left = upto[small] - upto[first] - (shared * budget - (upto[alone] - upto[small]))
    needed = len(sizes) - small + np.maximum(0, -(-left // budget))
    return int(needed.max())
