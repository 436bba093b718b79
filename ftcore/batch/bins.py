"""Bins of several updates at once, as many for each: what the ranks compute in their micro-steps, before ranks and micro-steps are numbered.

Everything is integers, so that every rank and machine gets the same. R updates (rows), B bins of each, S places of a bin.
"""

from __future__ import annotations

import numpy as np

from ftcore.batch.samples import Int64s, Samples

ID_BITS = 24
"""Low bits of a sorting key that hold the number of a bin; the load lies above them."""
_ID_MASK = (1 << ID_BITS) - 1
LEFT_SINGLE = 12
"""Samples that a bin still is to get below twice of which they are placed one by one."""
PICKED = 6
"""Samples of a bin that an exchange chooses from in one turn; with their pairs and nothing, 22 candidates."""


class Bins:
    """The bins of some updates, filled by longest-first placement on the emptiest bin (LPT)."""

    def __init__(self, samples: Samples, updates: Int64s, bins: int, budget: int) -> None:
        """`updates` [R] of `samples`; `bins` for each; `budget`: tokens that a bin may hold. Bins may be over it: `exchange.fit` puts that right."""
        self.samples, self.rows, self.bins, self.budget = samples, len(updates), bins, budget
        shape = (self.rows * bins,)
        self.tokens: Int64s = np.zeros(shape, dtype=np.int64)
        """[R·B] tokens of each bin."""
        self.costs: Int64s = np.zeros(shape, dtype=np.int64)
        self.held: Int64s = np.zeros(shape, dtype=np.int64)
        """[R·B] samples of each bin."""
        self.places: Int64s = self._fill(updates)
        """[R·B, S] the samples of each bin by falling length, then empty places; the last two places are empty in every bin."""

    def by_row(self, values: Int64s) -> Int64s:
        """[R, B] of [R·B]."""
        return values.reshape(self.rows, self.bins)

    def over(self) -> Int64s:
        """Rows with a bin over the budget."""
        return np.flatnonzero(self.by_row(self.tokens).max(axis=1) > self.budget)

    def grow(self, to_hold: int = 0) -> None:
        """Sees to it that the last two places are empty in every bin, and that one could hold so many samples."""
        missing = _places(max(int(self.held.max()), to_hold)) - self.places.shape[1]
        if missing > 0:
            more = np.full((len(self.places), missing + 2), self.samples.none, dtype=np.int64)
            self.places = np.concatenate([self.places, more], axis=1)

    def reorder(self, bins: Int64s) -> None:
        """Numbers the bins anew: bin `bins[i]` becomes bin i."""
        self.tokens, self.costs, self.held, self.places = self.tokens[bins], self.costs[bins], self.held[bins], self.places[bins]

    def swap(self, some: Int64s, others: Int64s) -> None:
        """Gives bins the numbers of other ones, and these theirs."""
        for values in (self.tokens, self.costs, self.held, self.places):
            values[some], values[others] = values[others], values[some]

    def replace(self, bins: Int64s, places: Int64s) -> None:
        """The samples of some bins, [n, S] in any order."""
        places.sort(axis=1)
        self.places[bins] = places
        self.tokens[bins] = self.samples.tokens[places].sum(axis=1)
        self.costs[bins] = self.samples.costs[places].sum(axis=1)
        self.held[bins] = (places < self.samples.none).sum(axis=1)

    def _fill(self, updates: Int64s) -> Int64s:
        """Places the samples and returns `places`.

        Each turn sorts the bins of a row by load and gives the next samples to the emptiest ones, for as long as the next bin is still emptier than
        each that got one: exactly what one sample at a time would do, in about count / B turns. While a bin still is to get more than 2 · LEFT_SINGLE,
        it gets several in a turn. The load is the cost, or the tokens in terms of the budget where these are nearer to their limit.
        """
        samples, number = self.samples, np.arange(self.bins)
        costs_upto, tokens_upto = samples.costs_upto, samples.tokens_upto
        at = samples.starts[updates]
        end = at + samples.counts[updates]
        a_token = (costs_upto[end] - costs_upto[at]) / (self.bins * self.budget)
        rows, keys = np.arange(self.rows), np.tile(number, (self.rows, 1))
        placed: list[tuple[Int64s, Int64s, Int64s, Int64s]] = []
        while len(rows):
            keys.sort(axis=1)
            bins = (keys & _ID_MASK) + (rows * self.bins)[:, None]
            several = np.maximum(1, (end - at) // (self.bins * LEFT_SINGLE) if self.bins > 1 else end - at)[:, None]
            first = np.minimum(at[:, None] + number * several, end[:, None])
            last = np.minimum(first + several, end[:, None])
            costs = self.costs[bins] + costs_upto[last] - costs_upto[first]
            tokens = self.tokens[bins] + tokens_upto[last] - tokens_upto[first]
            loads = np.maximum(costs, (tokens * a_token[rows][:, None]).astype(np.int64))
            gets = last > first
            gets[:, 1:] &= (keys[:, 1:] >> ID_BITS) <= np.minimum.accumulate(loads, axis=1)[:, :-1]
            to, sizes = bins[gets], (last - first)[gets]
            placed.append((first[gets], sizes, to, self.held[to]))
            self.costs[to], self.tokens[to] = costs[gets], tokens[gets]
            self.held[to] += sizes
            keys = np.where(gets, (loads << ID_BITS) | (keys & _ID_MASK), keys)
            at = np.minimum(at + gets.sum(axis=1) * several[:, 0], end)
            left = at < end
            if not left.all():
                rows, at, end, keys = rows[left], at[left], end[left], keys[left]
        return self._written(placed)

    def _written(self, placed: list[tuple[Int64s, Int64s, Int64s, Int64s]]) -> Int64s:
        """`places` of runs of samples: first sample, how many, bin, and the place of the first."""
        places = np.full((self.rows * self.bins, _places(int(self.held.max()))), self.samples.none, dtype=np.int64)
        for first, sizes, to, place in placed:
            within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            places[np.repeat(to, sizes), np.repeat(place, sizes) + within] = np.repeat(first, sizes) + within
        return places


def _places(most_held: int) -> int:
    return max(most_held, PICKED) + 2
