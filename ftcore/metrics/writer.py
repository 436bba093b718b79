"""metrics.jsonl (rank 0, a line an update), metrics/rank_R.jsonl (each rank's phases) and events.jsonl."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ftcore.spec.errors import CheckpointError
from ftcore.spec.events import attempt, emit
from ftcore.spec.run_dir import RunDir

BLOCK_BYTES = 1 << 16
"""Read at once from the end of a file."""


class MetricsWriter:
    """Appends one JSON object a line, flushed at once; a resumed run first drops the lines of updates it will do again."""

    def __init__(self, path: Path, *, next_update: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            cut_after(path, next_update)
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Raises CheckpointError when the file was deleted meanwhile: training would go on, and end with nothing that can be used."""
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise CheckpointError(
                f"{self._path} was deleted while the run was training", where="the run's folder", fix="start the run again, and leave its folder alone"
            )
        self._file.write(json.dumps(json_ready(record)) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def cut_after(path: Path, next_update: int) -> None:
    """Ends the file with its last whole line whose `update` is at most `next_update`.

    It is read from its end, so that a start late in a run takes no longer than an early one.
    """
    with path.open("r+b") as file:
        whole = file.seek(0, os.SEEK_END)
        file.truncate(whole - sum(len(line) for line in _lines_to_cut(file, whole, next_update)))


def lines_to_cut(path: Path, next_update: int) -> list[dict[str, Any]]:
    """The JSON objects that `cut_after` would cut away, in order; none where the file is missing."""
    try:
        with path.open("rb") as file:
            found = [_json_object(line) for line in _lines_to_cut(file, file.seek(0, os.SEEK_END), next_update)]
    except FileNotFoundError:
        return []
    return [record for record in reversed(found) if record is not None]


def _lines_to_cut(file: BinaryIO, end: int, next_update: int) -> Iterator[bytes]:
    """From the last line on, up to the last whole one whose update is done."""
    for line in _lines_backwards(file, end):
        if line.endswith(b"\n") and is_kept(line.decode("utf-8", errors="replace"), next_update):
            return
        yield line


def kept_lines(text: str, next_update: int) -> list[str]:
    """The whole lines whose `update` (1-based count of updates done) is at most `next_update`, without what a kill or a bad disk left of others."""
    return [line for line in text.splitlines() if is_kept(line, next_update)]


def is_kept(line: str, next_update: int) -> bool:
    """Whether a line is whole and of an update that is done."""
    update = (_json_object(line) or {}).get("update")
    return isinstance(update, int) and update <= next_update


def _json_object(line: str | bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def json_ready(value: Any) -> Any:
    """NaN and infinities, wherever they stand, as text: JSON has no such numbers, and a line must stay readable by any reader."""
    if isinstance(value, dict):
        return {key: json_ready(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _lines_backwards(file: BinaryIO, end: int) -> Iterator[bytes]:
    """The lines of a file up to `end`, the last one first, each with its line end where it has one."""
    rest = b""
    while end:
        start = max(0, end - BLOCK_BYTES)
        file.seek(start)
        rest, end = file.read(end - start) + rest, start
        first, *lines = rest.splitlines(keepends=True)
        yield from reversed(lines)
        rest = first
    if rest:
        yield rest


def record_event(run_dir: RunDir, event: str, **fields: Any) -> None:
    """Appends to events.jsonl, which keeps the history of all attempts, and tells the launcher."""
    ready = json_ready(fields)
    with run_dir.events.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, "time": time.time(), "attempt": attempt(), **ready}) + "\n")
    emit(event, **ready)
