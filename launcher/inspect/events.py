"""What a run's folder says of its launches: events.jsonl, metrics.jsonl, and the lock that a launch holds."""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.recorded import recorded_object
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_lines import number
from launcher.events_file import read_events

_TAIL_BYTES = 65536
_HOLDER = re.compile(r"process ([0-9]+) on (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The launch that owns a folder."""

    pid: int
    """0 while it has not said its number."""
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLaunch:
    """The newest launch, as its events tell."""

    attempt: int
    started: float
    """Seconds since the epoch."""
    status: int | None
    """None: it has not ended, or was killed before it could say so."""
    reason: str
    is_failure: bool = False
    """A rank, a host or a step failed in it; a launch that was stopped has no failure."""


def holder(run_dir: RunDir) -> Holder | None:
    """Who owns the folder now; None when nobody does. Asks the lock itself: what a dead process wrote into the file does not count."""
    try:
        handle = os.open(run_dir.lock, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        # Shared, and given back at once: others who look don't hinder each other.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        matched = _HOLDER.match(os.read(handle, 200).decode(errors="replace"))
        return Holder(pid=int(matched[1]), host=matched[2]) if matched else Holder(pid=0, host="")
    finally:
        os.close(handle)
    return None


def last_launch(run_dir: RunDir) -> LastLaunch | None:
    """None when none has begun, or the run is of an earlier ftlaunch."""
    events = read_events(run_dir, "launch_started", "launch_ended", "failure")
    started = next((event for event in reversed(events) if event["event"] == "launch_started"), None)
    if started is None:
        return None
    attempt = int(number(started, "attempt"))
    ended = next((event for event in events if event["event"] == "launch_ended" and event.get("attempt") == started.get("attempt")), None)
    status = int(number(ended, "status", 1)) if ended else None
    failed = any(event["event"] == "failure" and event.get("attempt") == started.get("attempt") for event in events)
    reason = str(ended.get("reason") or "") if ended else ""
    return LastLaunch(attempt=attempt, started=number(started, "time"), status=status, reason=reason, is_failure=failed)


def ended_well(run_dir: RunDir) -> bool:
    """Whether the newest launch did all there was to do."""
    launch = last_launch(run_dir)
    return launch is not None and launch.status == 0


def last_line(path: Path) -> dict[str, Any]:
    """The last whole JSON object of a file of lines; empty without one."""
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return {}
    for line in reversed(lines):
        found = recorded_object(line)
        if found is not None:
            return found
    return {}
