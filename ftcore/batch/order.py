"""The order in which an epoch visits its samples."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt


def epoch_order(samples: int, *, fingerprint: str, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """A permutation of range(samples), int64 [samples]: the same on every rank, machine and numpy version.

    It sorts raw Philox words instead of calling `permutation`, because only a bit generator's raw
    stream is promised to stay the same between numpy releases (NEP 19).
    """
    digest = hashlib.sha256(f"{fingerprint}/{seed}/{epoch}".encode()).digest()
    key = np.frombuffer(digest[:16], dtype=np.uint64)
    return np.argsort(np.random.Philox(key=key).random_raw(samples), kind="stable").astype(np.int64)
