"""Which rank computes which bin, in which micro-step."""

from __future__ import annotations

import numpy as np

from ftcore.batch.samples import Int64s


def arrange(costs: Int64s, ranks: int) -> Int64s:
    """Bins by micro-step and rank, int64 [R, B], of R updates with B = steps · ranks bins that cost `costs` [R, B], the dearest step first.

    Bins of like cost share a micro-step, because its ranks wait for the slowest; of each step the dearest bin goes to the rank that has the least so far.
    """
    rows, bins = costs.shape
    by_cost = np.argsort(-costs, axis=1, kind="stable").reshape(rows, bins // ranks, ranks)
    arranged = np.empty_like(by_cost)
    sums = np.zeros((rows, ranks), dtype=np.int64)
    row = np.arange(rows)[:, None]
    for step in range(bins // ranks):
        least = np.argsort(sums, axis=1, kind="stable")
        arranged[row, step, least] = by_cost[:, step]
        sums[row, least] += costs[row, by_cost[:, step]]
    return arranged.reshape(rows, bins)
