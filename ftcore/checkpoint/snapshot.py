"""The bytes of tensors that are still in use, read while training goes on.

Between two optimizer steps masters and moments do not change, so that they can be read where they lie. What has not been
read when the next step is about to come is copied by `detach`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

CHUNK_BYTES = 2**20
"""Read at once: small enough to stay in a core's cache, and `detach` waits for the copy of one at most."""


class CancelledError(Exception):
    """The save was given up while its tensors were being read."""


class Snapshot:
    """One reader, in a thread of its own, gets the bytes of all tensors in order, as they were at the start."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """The tensors must be contiguous, and must not change before `detach`."""
        self._parts = [tensor.detach().view(-1).view(torch.uint8) for tensor in tensors]
        self._position = 0
        self._reading = False
        self._closed = self._detached = self._cancelled = False
        self._turn = threading.Condition()
        devices = [part.device for part in self._parts if part.device.type == "cuda"]
        self._stream = torch.cuda.Stream(devices[0]) if devices else None
        if self._stream is not None:
            # Copies run beside the next forward pass, but not before the step that is still queued.
            self._stream.wait_stream(torch.cuda.current_stream(devices[0]))

    def chunks(self) -> Iterator[memoryview]:
        """All bytes in order; each chunk is good until the next is asked for. Raises CancelledError after `cancel`."""
        buffer = torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=self._stream is not None)
        view = memoryview(buffer.numpy())
        index = offset = 0
        while index < len(self._parts):
            with self._hold():
                filled = 0
                while filled < CHUNK_BYTES and index < len(self._parts):
                    part = self._parts[index]
                    size = min(CHUNK_BYTES - filled, part.numel() - offset)
                    self._copy(buffer[filled : filled + size], part[offset : offset + size])
                    filled, offset = filled + size, offset + size
                    if offset == part.numel():
                        index, offset = index + 1, 0
                self._position = index
            yield view[:filled]

    def detach(self) -> None:
        """Copies what is still to be read; afterwards the tensors may change."""
        if self._detached or self._position == len(self._parts):
            return
        with self._turn:
            self._closed = True
            self._turn.wait_for(lambda: not self._reading)
            try:
                for index in range(self._position, len(self._parts)):
                    self._parts[index] = self._copied(self._parts[index])
                self._detached = True
            finally:
                self._closed = False
                self._turn.notify_all()

    def cancel(self) -> None:
        """The reader ends at its next chunk."""
        self._cancelled = True

    @contextmanager
    def _hold(self) -> Iterator[None]:
        with self._turn:
            self._turn.wait_for(lambda: not self._closed)
            if self._cancelled:
                raise CancelledError
            self._reading = True
        try:
            yield
        finally:
            with self._turn:
                self._reading = False
                self._turn.notify_all()

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if self._stream is None or source.device.type == "cpu":
            # Not torch's copy: it would start a set of OpenMP threads for this thread.
            np.copyto(target.numpy(), source.numpy())
            return
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        self._stream.synchronize()

    def _copied(self, part: torch.Tensor) -> torch.Tensor:
        if part.device.type == "cpu":
            return part.clone()
        host = torch.empty(part.numel(), dtype=torch.uint8)
        self._copy(host, part)
        return host
