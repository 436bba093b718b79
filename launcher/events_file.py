"""RUN/events.jsonl as the launcher uses it: lines that it adds itself, where ranks write too, and events that it looks for."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from ftcore.spec.recorded import recorded_object
from ftcore.spec.run_dir import RunDir
from launcher.children import Event


def add_event(run_dir: RunDir, event: Event) -> None:
    """Adds one line, also behind one that a kill cut short. Raises OSError when the file can't be written."""
    with run_dir.events.open("a+b") as file:
        is_torn = file.seek(0, os.SEEK_END) > 0 and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
        # One write of less than a page: lines of several writers never mix.
        file.write((b"\n" if is_torn else b"") + json.dumps(event).encode() + b"\n")


def append_event(run_dir: RunDir, event: Event, attempt: int) -> None:
    """Adds one line of an attempt. A disk that is full must not hide the error itself."""
    with contextlib.suppress(OSError):
        add_event(run_dir, {**event, "attempt": attempt})


def read_events(run_dir: RunDir, *names: str) -> list[dict[str, Any]]:
    """The events with one of these names, in order; lines that are half written or foreign are passed over."""
    if not run_dir.events.is_file():
        return []
    try:
        with run_dir.events.open(encoding="utf-8", errors="replace") as file:
            # Most lines are of other events: those need no parsing.
            events = [recorded_object(line) for line in file if any(f'"{name}"' in line for name in names)]
    except OSError:
        return []
    return [event for event in events if event is not None and event.get("event") in names]
