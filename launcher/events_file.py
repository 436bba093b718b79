"""Lines that the launcher itself adds to RUN/events.jsonl, where ranks write too."""

from __future__ import annotations

import json

from ftcore.spec.run_dir import RunDir
from launcher.children import Event


def append_event(run_dir: RunDir, event: Event, attempt: int) -> None:
    """Adds one line. A disk that is full must not hide the error itself."""
    try:
        with run_dir.events.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**event, "attempt": attempt}) + "\n")
    except OSError:
        return
