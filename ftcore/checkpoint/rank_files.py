"""Write one rank's files durably while training goes on, each with the digest of the bytes that were written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ftcore.checkpoint import layout
from ftcore.checkpoint.capture import Capture
from ftcore.checkpoint.digest import digest_of, new_digest
from ftcore.checkpoint.manifest import FileEntry
from ftcore.checkpoint.snapshot import Snapshot
from ftcore.checkpoint.writer import render_header
from ftcore.spec.events import emit_at
from ftcore.spec.run_dir import fsync_path, write_atomic

Sink = Callable[[int, memoryview], int]
"""Writes some of the bytes to a file descriptor and returns how many, as os.write."""


def write_rank(partial: Path, rank: int, captured: Capture, snapshot: Snapshot, sink: Sink = os.write) -> list[FileEntry]:
    """Writes and fsyncs all files of `captured` below `partial`; returns their sizes and digests.

    Raises OSError when the disk does not take them, and CancelledError when the snapshot was given up.
    """
    folder = layout.rank_path(partial, rank)
    folder.mkdir(parents=True)
    entries = [_write_state(folder / layout.STATE, partial, captured, snapshot, sink)]
    for name, content in captured.files.items():
        write_atomic(partial / name, content)
        entries.append(FileEntry(path=name, bytes=len(content), digest=digest_of(content)))
    fsync_path(folder)
    return entries


def _write_state(path: Path, partial: Path, captured: Capture, snapshot: Snapshot, sink: Sink) -> FileEntry:
    header = render_header(captured.entries)
    digest = new_digest()
    digest.update(header)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        _drain(handle, memoryview(header), sink)
        for chunk in snapshot.chunks():
            digest.update(chunk)
            _drain(handle, chunk, sink)
        os.fsync(handle)
    except BaseException:
        snapshot.cancel()
        raise
    finally:
        os.close(handle)
    size = len(header) + sum(entry.bytes for entry in captured.entries)
    return FileEntry(path=str(path.relative_to(partial)), bytes=size, digest=digest.hexdigest())


def _drain(handle: int, data: memoryview, sink: Sink) -> None:
    # A disk that is nearly full takes a part first.
    while data:
        data = data[sink(handle, data) :]
        emit_at("save")
