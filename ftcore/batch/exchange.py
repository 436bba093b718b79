"""Puts bins right by exchanging up to two samples of one for up to two of another: first what is over the budget, then what the ranks' costs differ by.

P pairs of bins, C candidates of a bin: nothing, one sample, or two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ftcore.batch.bins import PICKED, Bins
from ftcore.batch.samples import Int32s, Int64s

FIT_TURNS = 80
FRUITLESS_TURNS = 24
"""Turns without a token gained after which an update is given up."""
BALANCE_TURNS = 20
FRUITLESS_BALANCES = 4
"""Turns that bring the dearest rank's cost no lower after which an update is left as it is."""
SWAP_TURNS = (4, 6, 8, 10)
"""Turns in which whole bins are swapped between ranks, of whatever micro-step."""
MOST_STEPS_SWAPPED = 64
"""Micro-steps of an update up to which that is tried."""
STEADY_TURNS = 6
"""Turns that look at the micro-step in which two ranks differ the most; later ones go through all of them."""
BALANCED = 1.002
"""Cost of the dearest rank over the mean at which an update is left as it is."""
BLOCK = 384
"""Pairs of bins looked at together: their 22 · 22 exchanges stay in the cache."""

_FIRST, _SECOND = np.triu_indices(PICKED, 1)
_FIRST = np.concatenate([[PICKED], np.arange(PICKED), _FIRST])
_SECOND = np.concatenate([[PICKED], np.full(PICKED, PICKED), _SECOND])
"""The candidates as pairs of picked samples; number PICKED is no sample."""


@dataclass(frozen=True, slots=True)
class _Candidates:
    """What a turn may take out of each of P bins."""

    bins: Int64s
    places: Int64s
    """[P, PICKED + 1]; the last is the one before the last of the bin, always empty."""
    samples: Int64s
    """[P, PICKED + 1]"""
    tokens: Int32s
    """[P, C]"""


def fit(bins: Bins, rows: Int64s) -> Int64s:
    """Exchanges, in these rows, between bins over the budget and bins below it until none is over. Returns the rows for which that did not work."""
    best = np.full(len(rows), np.iinfo(np.int64).max)
    fruitless = np.zeros(len(rows), dtype=np.int64)
    given_up: list[Int64s] = []
    for turn in range(FIT_TURNS if bins.bins > 1 else 0):
        tokens = bins.by_row(bins.tokens)[rows]
        excess = np.maximum(tokens - bins.budget, 0).sum(axis=1)
        fruitless = np.where(excess < best, 0, fruitless + 1)
        best = np.minimum(best, excess)
        lost = fruitless >= FRUITLESS_TURNS
        given_up.append(rows[lost])
        live = (excess > 0) & ~lost
        rows, tokens, best, fruitless = rows[live], tokens[live], best[live], fruitless[live]
        if not len(rows):
            break
        stuck = fruitless % 4 == 3
        for some, choose in ((rows[~stuck], _pairs), (rows[stuck], _rooms)):
            if len(some):
                row, heavy, light = choose(bins.by_row(bins.tokens)[some] - bins.budget, turn)
                first = some[row] * bins.bins
                _move(bins, first + heavy, first + light, turn)
    return np.concatenate([*given_up, rows[bins.by_row(bins.tokens)[rows].max(axis=1) > bins.budget]])


def _pairs(excess: Int64s, turn: int) -> tuple[Int64s, Int64s, Int64s]:
    """Rows, their bins over the budget, and for each a bin with room; no bin twice. Other pairs each turn. `excess` [R, B]: tokens over the budget."""
    order = np.argsort(excess, axis=1, kind="stable")
    over, roomy = (excess > 0).sum(axis=1)[:, None], (excess < 0).sum(axis=1)[:, None]
    number = np.arange(excess.shape[1])
    row, pair = np.nonzero(number < np.minimum(over, roomy))
    heavy = order[row, -1 - (pair + turn) % over[row, 0]]
    return row, heavy, order[row, (pair + 2 * turn) % roomy[row, 0]]


def _rooms(excess: Int64s, turn: int) -> tuple[Int64s, Int64s, Int64s]:
    """As `_pairs`, of each row the bin with the most room and another one: what room it has goes to the first, where more exchanges fit."""
    order = np.argsort(excess, axis=1, kind="stable")
    roomy = (excess < 0).sum(axis=1)
    row = np.flatnonzero(roomy > 1)
    return row, order[row, 0], order[row, 1 + turn // 2 % (roomy[row] - 1)]


def _move(bins: Bins, heavy: Int64s, light: Int64s, turn: int) -> None:
    """Makes in each pair the exchange that moves the most tokens from `heavy` to `light`, but no more than there is room for."""
    bins.grow()
    given, taken = _candidates(bins, heavy, turn), _candidates(bins, light, 3 * turn)
    room = (bins.budget - bins.tokens[light]).astype(np.int32)
    left = room[:, None] - given.tokens
    chosen = np.empty(len(heavy), dtype=np.int64)
    scratch = np.empty((BLOCK, len(_FIRST), len(_FIRST)), dtype=np.int32)
    for start in range(0, len(heavy), BLOCK):
        block = slice(start, start + BLOCK)
        rest = np.add(left[block, :, None], taken.tokens[block, None, :], out=scratch[: len(left[block])])
        # What would be too much is negative, and as an unsigned number larger than any other.
        chosen[block] = rest.reshape(len(rest), -1).view(np.uint32).argmin(axis=1)
    out, back = np.divmod(chosen, len(_FIRST))
    pair = np.arange(len(heavy))
    moved = given.tokens[pair, out] - taken.tokens[pair, back]
    _exchange(bins, given, taken, np.flatnonzero((moved > 0) & (moved <= room)), out, back)


def balance(bins: Bins, ranks: int) -> None:
    """Exchanges between the dearest and the cheapest ranks, in one micro-step, until their costs are about equal. Bin (step · ranks + rank) is a rank's.

    Whole bins first, where there are several micro-steps; then samples. No bin goes over the budget that was not.
    """
    half, steps = ranks // 2, bins.bins // ranks
    rows = np.arange(bins.rows)
    least = np.full(len(rows), np.inf)
    fruitless = np.zeros(len(rows), dtype=np.int64)
    for turn in range(BALANCE_TURNS if half else 0):
        costs = bins.costs.reshape(bins.rows, steps, ranks)[rows]
        sums = costs.sum(axis=1)
        mean = sums.mean(axis=1)
        dearest = sums.max(axis=1) / np.maximum(mean, 1.0)
        fruitless = np.where(dearest < least, 0, fruitless + 1)
        least = np.minimum(least, dearest)
        live = (dearest > BALANCED) & (fruitless < FRUITLESS_BALANCES)
        rows, costs, sums, mean, least, fruitless = rows[live], costs[live], sums[live], mean[live], least[live], fruitless[live]
        if not len(rows):
            return
        order = np.argsort(sums, axis=1, kind="stable")
        row = np.repeat(np.arange(len(rows)), half)
        number = np.tile(np.arange(half), len(rows))
        # Other ranks than in a turn that brought nothing.
        heavy, light = order[row, -1 - number], order[row, (number + fruitless[row]) % half]
        gap = sums[row, heavy] - sums[row, light]
        useful = gap > (BALANCED - 1) * mean[row]
        row, heavy, light, gap = row[useful], heavy[useful], light[useful], gap[useful]
        of_heavy, of_light = costs[row, :, heavy], costs[row, :, light]
        first = rows[row] * bins.bins
        if turn in SWAP_TURNS and 1 < steps <= MOST_STEPS_SWAPPED:
            pair, out, back = _bins_to_swap(of_heavy, of_light, gap)
            bins.swap(first[pair] + out * ranks + heavy[pair], first[pair] + back * ranks + light[pair])
        else:
            at = first + ((of_heavy - of_light).argmax(axis=1) + np.maximum(fruitless[row], turn - STEADY_TURNS)) % steps * ranks
            _even_out(bins, at + heavy, at + light, gap / 2, turn)


def _bins_to_swap(of_heavy: Int64s, of_light: Int64s, gap: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Pairs of ranks, and the micro-step of a bin of either, [n] each, that bring the two nearer when swapped; costs [P, steps], and their difference [P]."""
    steps = of_heavy.shape[1]
    off = np.abs(2 * (of_heavy[:, :, None] - of_light[:, None, :]) - gap[:, None, None]).reshape(len(gap), -1)
    chosen = off.argmin(axis=1)
    pair = np.flatnonzero(off[np.arange(len(gap)), chosen] < 0.95 * gap)
    out, back = np.divmod(chosen[pair], steps)
    return pair, out, back


def _even_out(bins: Bins, heavy: Int64s, light: Int64s, wanted: npt.NDArray[np.float64], turn: int) -> None:
    """Makes in each pair the exchange whose cost is nearest to `wanted`, where both bins have room for it and it is any better than none."""
    bins.grow()
    given, taken = _candidates(bins, heavy, turn), _candidates(bins, light, turn)
    target = wanted.astype(np.float32)
    cost_out, cost_back = _costs(bins, given) - target[:, None], _costs(bins, taken)
    # Tokens moved lie in [-room of heavy, room of light]; counted from the lower end, one unsigned comparison checks both.
    room = np.maximum(bins.budget - bins.tokens[heavy], 0).astype(np.int32)
    span = (room + np.maximum(bins.budget - bins.tokens[light], 0)).astype(np.uint32)
    from_lowest = given.tokens + room[:, None]
    chosen = np.empty(len(heavy), dtype=np.int64)
    off = np.empty(len(heavy), dtype=np.float32)
    candidates = len(_FIRST)
    misses = np.empty((BLOCK, candidates, candidates), dtype=np.float32)
    moves = np.empty((BLOCK, candidates, candidates), dtype=np.int32)
    for start in range(0, len(heavy), BLOCK):
        block = slice(start, start + BLOCK)
        size = len(off[block])
        miss = np.subtract(cost_out[block, :, None], cost_back[block, None, :], out=misses[:size])
        np.abs(miss, out=miss)
        move = np.subtract(from_lowest[block, :, None], taken.tokens[block, None, :], out=moves[:size])
        miss[move.view(np.uint32) > span[block, None, None]] = np.inf
        flat = miss.reshape(size, -1)
        chosen[block] = flat.argmin(axis=1)
        off[block] = flat[np.arange(size), chosen[block]]
    out, back = np.divmod(chosen, candidates)
    _exchange(bins, given, taken, np.flatnonzero(off < np.float32(0.95) * target), out, back)


def _candidates(bins: Bins, of: Int64s, turn: int) -> _Candidates:
    """Picks from each bin, evenly over its samples by length, other ones each turn."""
    held = bins.held[of][:, None]
    number = np.arange(PICKED)
    places = np.where(held <= PICKED, number, (number * held // PICKED + turn) % np.maximum(held, 1))
    places = np.concatenate([places, np.full_like(held, bins.places.shape[1] - 2)], axis=1)
    samples = bins.places[of[:, None], places]
    tokens = bins.samples.tokens[samples].astype(np.int32)
    return _Candidates(of, places, samples, tokens[:, _FIRST] + tokens[:, _SECOND])


def _costs(bins: Bins, candidates: _Candidates) -> npt.NDArray[np.float32]:
    """[P, C]"""
    costs = bins.samples.costs[candidates.samples].astype(np.float32)
    return costs[:, _FIRST] + costs[:, _SECOND]


def _exchange(bins: Bins, given: _Candidates, taken: _Candidates, pairs: Int64s, out: Int64s, back: Int64s) -> None:
    """Exchanges candidate `out` of the first bin for candidate `back` of the second, in these pairs."""
    goes, comes = _chosen(given, pairs, out), _chosen(taken, pairs, back)
    at = np.arange(len(pairs))[:, None]
    for candidates, (places, _), (_, samples) in ((given, goes, comes), (taken, comes, goes)):
        of = candidates.bins[pairs]
        rows = bins.places[of]
        rows[at, places] = samples
        bins.replace(of, rows)


def _chosen(candidates: _Candidates, pairs: Int64s, which: Int64s) -> tuple[Int64s, Int64s]:
    """Places and samples of the chosen candidates, [n, 2] each; where the second is none, its place is the last."""
    picked = np.stack([_FIRST[which[pairs]], _SECOND[which[pairs]]], axis=1)
    places, samples = candidates.places[pairs[:, None], picked], candidates.samples[pairs[:, None], picked]
    places[:, 1] += picked[:, 1] == PICKED
    return places, samples
