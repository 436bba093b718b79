"""Lines that the launcher itself adds to RUN/events.jsonl, where ranks write too."""

from __future__ import annotations

import json
import os

from ftcore.spec.run_dir import RunDir
from launcher.children import Event


def append_event(run_dir: RunDir, event: Event, attempt: int) -> None:
    """Adds one line, also behind one that a kill cut short. A disk that is full must not hide the error itself."""
    try:
        with run_dir.events.open("a+b") as file:
            is_torn = file.seek(0, os.SEEK_END) > 0 and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
            file.write((b"\n" if is_torn else b"") + json.dumps({**event, "attempt": attempt}).encode() + b"\n")
    except OSError:
        return
