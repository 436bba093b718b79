"""What W&B wrote offline, read back: records in LevelDB's log format behind a header of seven bytes (W&B's own format, `:W&B`)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER_BYTES, BLOCK_BYTES = 7, 32768
WHOLE, LAST = 1, 4


def runs(folder: Path) -> list[Path]:
    """The files of the runs in RUN/wandb, oldest first."""
    return sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))


def history(path: Path) -> list[dict[str, Any]]:
    """What was logged, in order."""
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in each.history.item} for each in _records(path, "history")]


def described(path: Path) -> tuple[Any, dict[str, Any]]:
    """The run's record, and its config."""
    run = next(_records(path, "run")).run
    return run, {item.key: json.loads(item.value_json) for item in run.config.update}


def _records(path: Path, kind: str) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    for data in _blobs(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == kind:
            yield record


def _blobs(data: bytes) -> Iterator[bytes]:
    at, held = HEADER_BYTES, b""
    while at + HEADER_BYTES <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEADER_BYTES:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + HEADER_BYTES])
        at += HEADER_BYTES
        held += data[at : at + size]
        at += size
        if kind in (WHOLE, LAST):
            yield held
            held = b""
