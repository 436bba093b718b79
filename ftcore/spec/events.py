"""What a process of a run tells the launcher: one JSON object a line on the file descriptor FTLAUNCH_EVENTS_FD.

Events in use:
  progress  {stage: "prepare"|"load"|"train"|"evaluate"|"save"|"export", done, total, text}
  update    one line of metrics.jsonl (rank 0, every logged update)
  note      {text}: a line worth showing once
  rank_exit {rank, host, status, ended_by_launcher, time}: sent by the node's supervisor; status is 128 + N for a signal N
  error     {kind, problems, traceback, rank, host, time, exit_status}
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

EVENTS_FD = "FTLAUNCH_EVENTS_FD"
ATTEMPT = "FTLAUNCH_ATTEMPT"
MAX_EVENT_BYTES = 4096
"""PIPE_BUF on Linux: shorter writes to a pipe are atomic, so lines of several ranks never mix."""


def emit(event: str, **fields: Any) -> None:
    """Sends one event. Does nothing without a listener; a launcher that went away is not an error here."""
    handle = os.environ.get(EVENTS_FD)
    if handle is None:
        return
    line = json.dumps({"event": event, "time": time.time(), **fields}) + "\n"
    has_other_writers = "RANK" in os.environ
    if has_other_writers and len(line.encode()) > MAX_EVENT_BYTES:
        line = json.dumps({"event": event, "time": time.time(), "truncated": True, **{k: v for k, v in fields.items() if len(str(v)) < 256}}) + "\n"
    try:
        _write_all(int(handle), line.encode())
    except OSError:
        return


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def attempt() -> int:
    """Which launch of the run this process belongs to, from 1."""
    return int(os.environ.get(ATTEMPT, "1"))
