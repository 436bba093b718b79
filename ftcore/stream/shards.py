"""Which lane reads which part of the data in an epoch: a function of the parts, the seed and the epoch, never of the ranks."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ftcore.data.stream_source import Shard
from ftcore.stream.draws import shard_order


def deal_shards(shards: Sequence[Shard], lanes: int, *, seed: int, epoch: int) -> list[list[Shard]]:
    """The shards of each lane in an epoch, in reading order.

    Shards go longest first to the lane that has least, so that lanes end close to each other; which of equal shards goes where,
    and the order within a lane, differ from epoch to epoch. A lane may have none.
    """
    order = shard_order(len(shards), seed=seed, epoch=epoch).tolist()
    rank = {index: place for place, index in enumerate(order)}
    dealt: list[list[int]] = [[] for _ in range(lanes)]
    heap = [(0, lane) for lane in range(lanes)]
    for index in sorted(order, key=lambda index: (-shards[index].size, rank[index])):
        held, lane = heapq.heappop(heap)
        dealt[lane].append(index)
        heapq.heappush(heap, (held + max(1, shards[index].size), lane))
    return [[shards[index] for index in sorted(own, key=lambda index: rank[index])] for own in dealt]


def lanes_without_shard(shards: int, lanes: int) -> int:
    """How many lanes have nothing to read when there are so many shards."""
    return max(0, lanes - shards)
