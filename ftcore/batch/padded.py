"""Padded micro-steps: samples of like length, each padded to the longest; the padding counts as tokens and as cost."""

from __future__ import annotations

import numpy as np

from ftcore.batch.arrange import arrange
from ftcore.batch.samples import Int32s, Int64s, Samples

HALVINGS = 5
"""Steps of the search for the lowest limit on a micro-step's cost."""


def padded_tokens(lengths: Int32s) -> int:
    """Positions that samples of these lengths take when each is padded to the longest; 0 without samples."""
    return len(lengths) * int(lengths.max()) if len(lengths) else 0


def pad(samples: Samples, ranks: int, budget: int) -> tuple[Int64s, Int64s]:
    """Micro-steps of each update, [U], and the bin of each sample within its update, [N]: step · ranks + rank.

    The samples of an update, longest first, are cut into runs that hold the budget: into the fewest micro-steps, and in these with the lowest cost of the
    dearest run. Where samples are enough, no rank is left without any.
    """
    everything = np.arange(len(samples.starts))
    # A sample that no other shares a run with.
    fits = np.maximum(1, budget // np.maximum(1, samples.tokens))
    unlimited = np.full(len(everything), np.iinfo(np.int64).max)
    steps = np.maximum(1, -(-_count_runs(samples, everything, fits, unlimited, most=None) // ranks))
    bin_of = np.zeros(len(samples.tokens), dtype=np.int64)
    for each in np.unique(steps):
        updates = everything[steps == each]
        runs = int(each) * ranks
        caps = _lowest_caps(samples, updates, fits, runs)
        starts = _split(samples, updates, _cut(samples, updates, fits, caps, runs), runs)
        _number(samples, updates, starts, ranks, bin_of)
    return steps, bin_of[:-1]


def _lengths_of_runs(samples: Samples, at: Int64s, fits: Int64s, caps: Int64s) -> Int64s:
    """Samples of a run that begins at each of these: what the budget and the cap on its cost hold, one at least."""
    sizes: Int64s = np.maximum(1, np.minimum(fits[at], caps // np.maximum(1, samples.costs[at])))
    return sizes


def _count_runs(samples: Samples, updates: Int64s, fits: Int64s, caps: Int64s, most: int | None) -> Int64s:
    """Runs of each update when each is as long as it may be; `most` + 1 stands for any more."""
    at, ends = samples.starts[updates], samples.starts[updates] + samples.counts[updates]
    counts = np.zeros(len(updates), dtype=np.int64)
    live = np.flatnonzero(at < ends)
    while len(live):
        counts[live] += 1
        at[live] += _lengths_of_runs(samples, at[live], fits, caps[live])
        live = live[at[live] < ends[live]]
        if most is not None:
            live = live[counts[live] <= most]
    return counts


def _lowest_caps(samples: Samples, updates: Int64s, fits: Int64s, runs: int) -> Int64s:
    """The lowest cost of a run, nearly, with which no update needs more than `runs`, [R]."""
    dearest = np.maximum.reduceat(fits * samples.costs, samples.starts)[updates]
    low: Int64s = samples.between(samples.costs_upto)[updates] // runs
    high: Int64s = np.minimum(dearest, samples.costs[samples.starts[updates]] * samples.counts[updates])
    for _ in range(HALVINGS):
        middle = (low + high) // 2
        enough = _count_runs(samples, updates, fits, middle, most=runs) <= runs
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def _cut(samples: Samples, updates: Int64s, fits: Int64s, caps: Int64s, runs: int) -> Int64s:
    """Where the runs begin, [R, runs + 1]; those that are missing are empty, at the end."""
    at, ends = samples.starts[updates], samples.starts[updates] + samples.counts[updates]
    starts = [at]
    for _ in range(runs):
        at = np.minimum(at + _lengths_of_runs(samples, at, fits, caps), ends)
        starts.append(at)
    return np.stack(starts, axis=1)


def _split(samples: Samples, updates: Int64s, starts: Int64s, runs: int) -> Int64s:
    """Halves the dearest run that has two samples as long as one of the update's is empty: rather shorter runs than ranks without work."""
    while True:
        sizes = np.diff(starts, axis=1)
        costs = np.where(sizes > 1, sizes * samples.costs[starts[:, :-1]], 0)
        rows = np.flatnonzero((sizes[:, -1] == 0) & (costs.max(axis=1) > 0))
        if not len(rows):
            return starts
        dearest = costs[rows].argmax(axis=1)
        # The last entry, a repeated end, makes room for the new beginning, which sorting puts in its place.
        starts[rows, -1] = starts[rows, dearest] + -(-sizes[rows, dearest] // 2)
        starts[rows] = np.sort(starts[rows], axis=1)


def _number(samples: Samples, updates: Int64s, starts: Int64s, ranks: int, bin_of: Int64s) -> None:
    """Writes the bins of the runs' samples into `bin_of`."""
    sizes = np.diff(starts, axis=1)
    costs = sizes * samples.costs[starts[:, :-1]]
    arranged = arrange(costs, ranks)
    number = np.empty_like(arranged)
    np.put_along_axis(number, arranged, np.arange(arranged.shape[1])[None, :], axis=1)
    within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes.sum(axis=1)) - sizes.sum(axis=1), sizes.sum(axis=1))
    bin_of[np.repeat(samples.starts[updates], samples.counts[updates]) + within] = np.repeat(number.ravel(), sizes.ravel())
