"""Random numbers found by number: a function of seed, lane, epoch and the number of the draw, so that a position needs no generator's state."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

_BLOCK = 1024
"""Draws made at once; a multiple of the four that one counter of Philox gives."""
_SHARDS = (1 << 32) - 1
"""Stands in the place of a lane for draws that belong to none."""
_MASK = (1 << 64) - 1


class Draws:
    """The draws of one lane in one epoch."""

    def __init__(self, *, seed: int, lane: int, epoch: int) -> None:
        self._key = _key(seed, lane, epoch)
        self._block = -1
        self._numbers: list[int] = []

    def below(self, draw: int, count: int) -> int:
        """Draw number `draw` (from 0) as an integer in [0, count), by multiplication: its bias is below count / 2^64."""
        block, index = divmod(draw, _BLOCK)
        if block != self._block:
            bits = np.random.Philox(key=self._key, counter=block * (_BLOCK // 4))
            self._block, self._numbers = block, bits.random_raw(_BLOCK).tolist()
        return (self._numbers[index] * count) >> 64


def shard_order(count: int, *, seed: int, epoch: int) -> Int64s:
    """The permutation of `count` shards in an epoch, int64 [count]."""
    return np.random.Generator(np.random.Philox(key=_key(seed, _SHARDS, epoch))).permutation(count)


def _key(seed: int, lane: int, epoch: int) -> npt.NDArray[np.uint64]:
    return np.array([seed & _MASK, (lane << 32) | epoch], dtype=np.uint64)
