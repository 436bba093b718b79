"""How evenly the samples of updates fall on ranks: a deal of made-up updates whose lengths are spread as the data's."""

from __future__ import annotations

import heapq
import random
from collections import Counter

from ftcore.spec.deals import Dealt
from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.lengths import DataLengths
from launcher.memory.shape import ModelShape
from launcher.memory.work import cut_update, matmul_parameters

DRAWN_SAMPLES = 40_000
"""Samples of the made-up updates together; enough for a mean that a second draw changes by less than a percent."""
MOST_UPDATES = 20
BIN_MIDDLE = 0.92
"""Of a histogram bin's upper bound, the length that stands for its samples: bins are a factor of 2^(1/4) wide."""


def attention_share(shape: ModelShape, supervised_share: float) -> float:
    """c of a sample's cost l + c·l²: attention's operations over those of matrix products (compare ftcore.batch.cost)."""
    products = matmul_parameters(shape) + supervised_share * shape.vocab * shape.hidden
    return shape.layers * shape.heads * shape.head_dim / max(1.0, products)


def deal_by_lengths(resolved: ResolvedSpec, shape: ModelShape, lengths: DataLengths) -> Dealt:
    """The deal of made-up updates; where no lengths were counted all samples are as long as the mean."""
    spec, ranks = resolved.spec, resolved.world_size
    portion = cut_update(spec, ranks, lengths)
    size = max(1, round(portion.samples))
    times = max(1, min(MOST_UPDATES, DRAWN_SAMPLES // size)) if lengths.histogram else 1
    share, chance = attention_share(shape, lengths.supervised_share), random.Random(0)
    rows = [_dealt(_drawn(lengths, size, chance), ranks, max(spec.batch.micro_batch_tokens, 1), share) for _ in range(times)]
    micro_steps, imbalance, step_imbalance, idle = (sum(row[index] for row in rows) / times for index in range(4))
    return Dealt(
        ranks=ranks,
        updates=times,
        micro_steps=micro_steps,
        samples=portion.samples,
        tokens=portion.tokens,
        imbalance=imbalance,
        step_imbalance=step_imbalance,
        idle_ranks=idle,
    )


def _drawn(lengths: DataLengths, size: int, chance: random.Random) -> list[float]:
    """Lengths of one update's samples, longest first."""
    if not lengths.histogram:
        return [max(1.0, lengths.mean)] * size
    bounds = [max(1.0, min(bound * BIN_MIDDLE, lengths.longest)) for bound in lengths.histogram]
    return sorted(chance.choices(bounds, weights=list(lengths.histogram.values()), k=size), reverse=True)


def _dealt(lengths: list[float], ranks: int, budget: int, share: float) -> tuple[float, float, float, float]:
    """(micro-steps, imbalance, the same step by step, ranks without a sample) of one update: longest first on the bin that costs least so far."""
    steps = max(1, -(-bins_of(lengths, budget) // ranks))
    queue = [(0.0, index) for index in range(ranks * steps)]
    for length in lengths:
        cost, index = queue[0]
        heapq.heapreplace(queue, (cost + length + share * length * length, index))
    # Bins of like cost share a micro-step; from one to the next the ranks are gone through the other way round.
    ordered = sorted((cost for cost, _ in queue), reverse=True)
    rows = [ordered[step * ranks : (step + 1) * ranks] for step in range(steps)]
    by_rank = [sum(row[rank if number % 2 == 0 else ranks - 1 - rank] for number, row in enumerate(rows)) for rank in range(ranks)]
    mean = sum(ordered) / ranks
    return float(steps), max(by_rank) / mean, sum(row[0] for row in rows) / mean, float(sum(load == 0 for load in by_rank))


def bins_of(lengths: list[float], budget: int) -> int:
    """Micro-steps of a rank that hold the samples: each is filled with the longest that still fit, until none is left."""
    left, bins = Counter(lengths), 0
    ordered = sorted(left, reverse=True)
    while any(left.values()):
        room, held = float(budget), Counter[float]()
        for length in ordered:
            fitting = min(left[length], int(room // length)) if held else max(1, int(budget // length)) if left[length] else 0
            fitting = min(fitting, left[length])
            held[length] += fitting
            room -= fitting * length
        # The same micro-step again, as often as there are samples for it.
        times = min(left[length] // count for length, count in held.items() if count)
        bins += times
        left.subtract({length: count * times for length, count in held.items()})
    return max(1, bins)
