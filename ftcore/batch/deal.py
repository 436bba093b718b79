"""Deal the samples of one update to ranks and micro-steps."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ftcore.spec.errors import DataError

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Deal:
    """Who computes what: `parts[rank][micro_step]` are indices into the update's samples (empty: a filler row)."""

    parts: tuple[tuple[Int64s, ...], ...]

    @property
    def micro_steps(self) -> int:
        """The same number on every rank, because ZeRO-3 gathers weights in every forward."""
        return len(self.parts[0])


def sample_costs(lengths: Int32s, attention_share: float) -> npt.NDArray[np.float64]:
    """Relative time of each sample, float64 [n]: l + c·l², c = `attention_share` (attention FLOPs over matmul FLOPs, per token of length)."""
    wide = lengths.astype(np.float64)
    return wide + attention_share * wide * wide


def deal(lengths: Int32s, *, world_size: int, micro_batch_tokens: int, attention_share: float, layout: str = "packed") -> Deal:
    """Every sample to exactly one micro-step of one rank, none over `micro_batch_tokens`, with balanced costs.

    Padded, a micro-step holds samples of like length, and its padding counts. Packed, it takes the fewest
    micro-steps for which longest-first placement on the cheapest bin with room works, and falls back to best fit
    where balance would need one more. Ties break by index, so the result is a pure function of its arguments.
    Raises DataError when a sample is longer than the budget.
    """
    if len(lengths) and int(lengths.max()) > micro_batch_tokens:
        raise DataError(
            f"a sample has {int(lengths.max())} tokens, more than micro_batch_tokens {micro_batch_tokens}",
            where="batch.micro_batch_tokens",
            fix=f"use at least {int(lengths.max())}, or a smaller data.max_length",
        )
    costs = sample_costs(lengths, attention_share)
    by_size = np.lexsort((np.arange(len(lengths)), -lengths.astype(np.int64)))
    if layout == "padded":
        rows = _by_length(lengths, by_size, world_size, micro_batch_tokens)
        # A padded row costs as much as the longest of its micro-step.
        padded = np.array([len(row) * float(costs[row].max()) if row else 0.0 for row in rows])
        return _arrange(rows, padded, world_size)
    least = max(1, -(-int(lengths.sum()) // (world_size * micro_batch_tokens)))
    bins = world_size * least
    while True:  # ends: with one bin a sample everything fits
        placed = _cheapest_with_room(lengths, costs, by_size, bins, micro_batch_tokens) or _best_fit(lengths, by_size, bins, micro_batch_tokens)
        if placed is not None:
            totals = np.array([float(costs[part].sum()) if part else 0.0 for part in placed])
            return _arrange(placed, totals, world_size)
        bins += world_size


def _cheapest_with_room(lengths: Int32s, costs: npt.NDArray[np.float64], by_size: Int64s, bins: int, budget: int) -> list[list[int]] | None:
    contents: list[list[int]] = [[] for _ in range(bins)]
    heap = [(0.0, bin_index, 0) for bin_index in range(bins)]
    for sample in by_size.tolist():
        length, passed = int(lengths[sample]), []
        while heap and heap[0][2] + length > budget:
            passed.append(heapq.heappop(heap))
        if not heap:
            return None
        cost, bin_index, used = heapq.heappop(heap)
        contents[bin_index].append(sample)
        heapq.heappush(heap, (cost + float(costs[sample]), bin_index, used + length))
        for entry in passed:
            heapq.heappush(heap, entry)
    return contents


def _best_fit(lengths: Int32s, by_size: Int64s, bins: int, budget: int) -> list[list[int]] | None:
    contents: list[list[int]] = [[] for _ in range(bins)]
    room = np.full(bins, budget, dtype=np.int64)
    for sample in by_size.tolist():
        left = room - int(lengths[sample])
        left[left < 0] = budget + 1
        bin_index = int(np.argmin(left))
        if left[bin_index] > budget:
            return None
        contents[bin_index].append(sample)
        room[bin_index] -= int(lengths[sample])
    return contents


def _by_length(lengths: Int32s, by_size: Int64s, world_size: int, budget: int) -> list[list[int]]:
    """Runs of the samples by falling length, each padded to at most `budget` tokens, as many as a multiple of `world_size`."""
    runs: list[list[int]] = []
    for sample in by_size.tolist():
        if not runs or (len(runs[-1]) + 1) * int(lengths[runs[-1][0]]) > budget:
            runs.append([])
        runs[-1].append(sample)
    while len(runs) % world_size:
        # Rather shorter runs than filler rows on some ranks.
        splittable = [index for index, run in enumerate(runs) if len(run) > 1]
        if not splittable:
            runs.append([])
            continue
        largest = max(splittable, key=lambda index: (len(runs[index]) * int(lengths[runs[index][0]]), -index))
        half = -(-len(runs[largest]) // 2)
        runs[largest : largest + 1] = [runs[largest][:half], runs[largest][half:]]
    return runs


def padded_tokens(lengths: Int32s) -> int:
    """Positions that samples of these lengths take when each is padded to the longest; 0 without samples."""
    return len(lengths) * int(lengths.max()) if len(lengths) else 0


def _arrange(contents: list[list[int]], totals: npt.NDArray[np.float64], world_size: int) -> Deal:
    # Bins of like cost share a micro-step, because its ranks wait for the slowest; a rank that got the
    # dearer bin of one micro-step gets the cheaper one of the next.
    order = sorted(range(len(contents)), key=lambda index: (-totals[index], index))
    parts: list[list[Int64s]] = [[] for _ in range(world_size)]
    for step in range(len(contents) // world_size):
        group = order[step * world_size : (step + 1) * world_size]
        for rank, bin_index in enumerate(group if step % 2 == 0 else reversed(group)):
            parts[rank].append(np.asarray(sorted(contents[bin_index]), dtype=np.int64))
    return Deal(tuple(tuple(rank_parts) for rank_parts in parts))
