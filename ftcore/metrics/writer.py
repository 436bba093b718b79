"""metrics.jsonl (rank 0, a line an update), metrics/rank_R.jsonl (each rank's phases) and events.jsonl."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ftcore.spec.errors import CheckpointError
from ftcore.spec.events import attempt, emit
from ftcore.spec.run_dir import RunDir, write_atomic


class MetricsWriter:
    """Appends one JSON object a line, flushed at once; a resumed run first drops the lines of updates it will do again."""

    def __init__(self, path: Path, *, next_update: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            write_atomic(path, "".join(line + "\n" for line in kept_lines(path.read_text(encoding="utf-8", errors="replace"), next_update)))
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Raises CheckpointError when the file was deleted meanwhile: training would go on, and end with nothing that can be used."""
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise CheckpointError(
                f"{self._path} was deleted while the run was training", where="the run's folder", fix="start the run again, and leave its folder alone"
            )
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def kept_lines(text: str, next_update: int) -> list[str]:
    """The whole lines whose `update` (1-based count of updates done) is at most `next_update`; what a kill or a bad disk left of others goes too."""
    kept = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        update = record.get("update") if isinstance(record, dict) else None
        if isinstance(update, int) and update <= next_update:
            kept.append(line)
    return kept


def record_event(run_dir: RunDir, event: str, **fields: Any) -> None:
    """Appends to events.jsonl, which keeps the history of all attempts, and tells the launcher."""
    with run_dir.events.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, "time": time.time(), "attempt": attempt(), **fields}) + "\n")
    emit(event, **fields)
