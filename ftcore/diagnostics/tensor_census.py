"""A count of the live tensors that Python knows, by shape and type."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class Kind:
    """Tensors that look alike."""

    shape: tuple[int, ...]
    dtype: str
    device: str


@dataclass(frozen=True, slots=True)
class Census:
    """Live tensors of each kind. Tensors that only an autograd graph or C++ holds are unknown to Python's garbage collector and are missing."""

    count: Counter[Kind] = field(default_factory=Counter)
    bytes: Counter[Kind] = field(default_factory=Counter)
    """Of storages; one that several tensors share counts once."""


def take_census() -> Census:
    """Counts every live tensor; some hundred milliseconds where there are a million objects. Keeps none of them alive."""
    census = Census()
    storages: set[tuple[str, int]] = set()
    for held in gc.get_objects():
        # Not isinstance: objects of other libraries answer it with code of their own.
        if not issubclass(type(held), torch.Tensor) or held.layout != torch.strided or held.device.type == "meta":
            continue
        kind = Kind(tuple(held.shape), str(held.dtype).removeprefix("torch."), held.device.type)
        census.count[kind] += 1
        storage = held.untyped_storage()
        address = (str(held.device), storage.data_ptr())
        if address not in storages:
            storages.add(address)
            census.bytes[kind] += storage.nbytes()
    return census


def grown(before: Census, after: Census) -> Counter[str]:
    """What there is more of in `after`, as text, with its bytes more: `21 x float32 [128, 64] on cpu`."""
    more = after.count - before.count
    growth: Counter[str] = Counter()
    for kind, count in more.items():
        size = after.bytes[kind] - before.bytes[kind]
        if size > 0:
            growth[f"{count} x {kind.dtype} {list(kind.shape)} on {kind.device}"] = size
    return growth
