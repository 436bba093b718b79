"""A snapshot gives the bytes of the moment it was taken, however late they are read."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from ftcore.checkpoint.snapshot import CHUNK_BYTES, CancelledError, Snapshot

SIZES = (5, 0, 3 * CHUNK_BYTES // 4 + 1, 1, CHUNK_BYTES // 2)
"""Elements: less than a chunk, none, and several chunks."""


def make_tensors() -> list[torch.Tensor]:
    return [torch.randn(size) for size in SIZES]


def content(tensors: list[torch.Tensor]) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in tensors)


def test_reads_all_in_order() -> None:
    tensors = make_tensors()
    snapshot = Snapshot(tensors)
    chunks = [bytes(chunk) for chunk in snapshot.chunks()]
    assert b"".join(chunks) == content(tensors)
    assert {len(chunk) for chunk in chunks[:-1]} == {CHUNK_BYTES}


@pytest.mark.parametrize("read", [0, 1, 3, 100])
def test_what_was_not_read_is_copied_before_the_step(read: int) -> None:
    """The reader stands after `read` chunks; the tensors change twice, with a `detach` before each."""
    tensors = make_tensors()
    before = content(tensors)
    snapshot = Snapshot(tensors)
    first = snapshot.chunks()
    got = [bytes(chunk) for _, chunk in zip(range(read), first, strict=False)]
    for _ in range(2):
        snapshot.detach()
        for tensor in tensors:
            tensor.add_(1.0)
    assert b"".join([*got, *(bytes(chunk) for chunk in first)]) == before


def test_nothing_is_copied_when_all_was_read() -> None:
    tensors = make_tensors()
    snapshot = Snapshot(tensors)
    for _ in snapshot.chunks():
        pass
    parts = list(snapshot._parts)
    snapshot.detach()
    assert all(part is other for part, other in zip(parts, snapshot._parts, strict=True))


def test_a_reader_in_another_thread_never_sees_a_change() -> None:
    """Steps come while a slow thread reads; 20 rounds, each with another meeting point."""
    for round_ in range(20):
        tensors = [torch.full((CHUNK_BYTES // 4,), float(index)) for index in range(8)]
        before = content(tensors)
        snapshot = Snapshot(tensors)
        got: list[bytes] = []

        def read(snapshot: Snapshot = snapshot, got: list[bytes] = got) -> None:
            for chunk in snapshot.chunks():
                got.append(bytes(chunk))
                time.sleep(0.0005)

        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(round_ * 0.0003)
        snapshot.detach()
        for tensor in tensors:
            tensor.fill_(-1.0)
        thread.join()
        assert b"".join(got) == before


def test_cancelled_readers_end() -> None:
    snapshot = Snapshot(make_tensors())
    chunks = snapshot.chunks()
    next(chunks)
    snapshot.cancel()
    with pytest.raises(CancelledError):
        next(chunks)
