"""Which rank computes which bin, in which micro-step."""

from __future__ import annotations

import numpy as np

from ftcore.batch.samples import Int64s


def arrange(costs: Int64s, ranks: int) -> Int64s:
    """Bins by micro-step and rank, int64 [R, B], of R updates with B = steps · ranks bins that cost `costs` [R, B], the dearest step first.

    Bins of like cost share a micro-step, because its ranks wait for the slowest. Step after step, those first whose bins differ the most, the dearest
    bin goes to the rank that has the least so far: what is left to even out gets less and less.
    """
    rows, bins = costs.shape
    by_cost = np.argsort(-costs, axis=1, kind="stable").reshape(rows, bins // ranks, ranks)
    row = np.arange(rows)
    of_steps = costs[row[:, None, None], by_cost]
    uneven_first = np.argsort(of_steps[:, :, -1] - of_steps[:, :, 0], axis=1, kind="stable")
    arranged = np.empty_like(by_cost)
    sums = np.zeros((rows, ranks), dtype=np.int64)
    for step in uneven_first.T:
        least = np.argsort(sums, axis=1, kind="stable")
        arranged[row[:, None], step[:, None], least] = by_cost[row, step]
        sums[row[:, None], least] += of_steps[row, step]
    return arranged.reshape(rows, bins)
