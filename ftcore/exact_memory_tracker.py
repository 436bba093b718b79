"""Counts the bytes of live tensor storages, each once, while a program runs: real tensors, and fake ones that hold no memory."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

OTHER = "other"


class StorageTracker(TorchDispatchMode):
    """While entered, every storage that an operator returns is counted from then until it is freed.

    A storage is one, however many tensors view it. Memory that an operator takes and gives back inside itself is not seen; `with_temporary` adds
    what is known of such. On CUDA the backward pass runs in threads of its own, where no mode is active: use the allocator's own peak there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, tuple[weakref.ref[torch.UntypedStorage], int, str]] = {}
        self.bytes: Counter[str] = Counter()
        """Live bytes by label."""
        self.total = 0
        self.peak = 0
        """Highest `total` since the last `restart_peak`."""
        self.at_peak: Counter[str] = Counter()
        """`bytes` as it was then."""
        self.label = OTHER
        """What a new storage is labelled with."""
        self.peak_operator = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor):
                self._see(value, str(func))
        return result

    def sweep(self, label: Callable[[torch.Tensor], str]) -> None:
        """Counts the storages of all tensors that Python knows now, labelled by `label`; one that is counted already gets the new label."""
        for value in gc.get_objects():
            if issubclass(type(value), torch.Tensor) and value.layout == torch.strided and not _is_data_free(value):
                self.mark((value,), label(value))

    def mark(self, tensors: Iterable[torch.Tensor], label: str, *, keep: tuple[str, ...] = ()) -> int:
        """Labels the storages of `tensors`, counting those that were not yet; those labelled one of `keep` stay so.

        Returns the bytes labelled, each storage once.
        """
        total, seen = 0, set()
        for tensor in tensors:
            if _is_data_free(tensor):
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in seen or (key in self._held and self._held[key][2] in keep and self._held[key][0]() is storage):
                continue
            seen.add(key)
            self._add(storage, label)
            self._label(key, label)
            total += storage.nbytes()
        return total

    def relabel(self, old: str, new: str) -> None:
        """Everything that is labelled `old` is labelled `new`."""
        for key in [key for key, held in self._held.items() if held[2] == old]:
            self._label(key, new)

    def _label(self, key: int, label: str) -> None:
        reference, size, before = self._held[key]
        self._held[key] = (reference, size, label)
        self.bytes[before] -= size
        self.bytes[label] += size

    def bytes_of(self, tensor: torch.Tensor, *labels: str) -> int:
        """Bytes of the tensor's storage where it is counted under one of `labels`; else 0."""
        held = self._held.get(tensor.untyped_storage()._cdata)
        return held[1] if held is not None and held[2] in labels else 0

    def restart_peak(self) -> None:
        """Begins a new peak at what is live now."""
        self.peak, self.at_peak, self.peak_operator = self.total, self.bytes.copy(), ""

    @contextmanager
    def labelled(self, label: str) -> Iterator[None]:
        """New storages get `label` inside."""
        before, self.label = self.label, label
        try:
            yield
        finally:
            self.label = before

    def _see(self, tensor: torch.Tensor, operator: str) -> None:
        if tensor.layout != torch.strided or _is_data_free(tensor):
            return
        self._add(tensor.untyped_storage(), self.label)
        if self.total > self.peak:
            self.peak, self.at_peak, self.peak_operator = self.total, self.bytes.copy(), operator

    def _add(self, storage: torch.UntypedStorage, label: str) -> None:
        key, size = storage._cdata, storage.nbytes()
        held = self._held.get(key)
        if held is not None and held[0]() is storage:
            if held[1] != size:
                self._change(key, held, size)
            return
        if held is not None:
            self._forget(key, held[0])
        reference = weakref.ref(storage, lambda gone, key=key: self._forget(key, gone))  # type: ignore[misc]
        self._held[key] = (reference, size, label)
        self.bytes[label] += size
        self.total += size

    def _change(self, key: int, held: tuple[weakref.ref[torch.UntypedStorage], int, str], size: int) -> None:
        """A storage was resized in place."""
        self._held[key] = (held[0], size, held[2])
        self.bytes[held[2]] += size - held[1]
        self.total += size - held[1]

    def _forget(self, key: int, reference: weakref.ref[torch.UntypedStorage]) -> None:
        held = self._held.get(key)
        if held is not None and held[0] is reference:
            del self._held[key]
            self.bytes[held[2]] -= held[1]
            self.total -= held[1]


def _is_data_free(tensor: torch.Tensor) -> bool:
    """A meta tensor has a size but no memory, and never will; a fake one stands for one that will."""
    return tensor.device.type == "meta"
