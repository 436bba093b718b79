"""What a process of a run tells the launcher: one JSON object a line on the file descriptor FTLAUNCH_EVENTS_FD.

Events in use:
  progress  {stage: "prepare"|"load"|"train"|"evaluate"|"save"|"export", done, total, text}
  update    one line of metrics.jsonl (rank 0, every logged update)
  note      {text}: a line worth showing once
  rank_exit {rank, host, status, ended_by_launcher, time}: sent by the node's supervisor; status is 128 + N for a signal N
  ready     {rank}: the rank takes signals from here on; before, it can't be asked to stop
  at        {rank, update, stage}: the rank made progress; at most one a second per rank, from whichever thread. `update` is the number of
            updates done; stage as of progress, or "start" before the model is loaded
  preempted {update, path}: rank 0, the run stopped as it was asked to; `path` is the checkpoint to go on from ("" where there is none)
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

SECONDS_BETWEEN_AT = 1.0


class _Progress:
    """What this process told last."""

    update = 0
    next_at = 0.0
    """When the next `at` may be sent, in seconds of time.monotonic."""


def emit(event: str, **fields: Any) -> None:
    """Sends one event. Does nothing without a listener; a launcher that went away is not an error here."""
    handle = os.environ.get(EVENTS_FD)
    if handle is None:
        return
    line = json.dumps({"event": event, "time": time.time(), **fields}) + "\n"
    has_other_writers = "RANK" in os.environ
    if has_other_writers and len(line) > MAX_EVENT_BYTES:
        line = json.dumps(_fitting({"event": event, "time": time.time(), "truncated": True}, fields)) + "\n"
    try:
        _write_all(int(handle), line.encode())
    except OSError:
        return


def _fitting(head: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """`head` with as many of the fields as one event holds, the shortest first."""
    room = MAX_EVENT_BYTES - len(json.dumps(head)) - len("\n")
    kept = dict(head)
    for name, value in sorted(fields.items(), key=lambda each: len(json.dumps(each[1]))):
        room -= len(json.dumps({name: value}))
        if room < 0:
            break
        kept[name] = value
    return kept


def emit_ready() -> None:
    """Tells that this rank takes signals from now on."""
    emit("ready", rank=_rank())


def emit_at(stage: str, update: int | None = None) -> None:
    """Tells that this rank made progress, with `update` updates done (None: as many as told last). One call a second is sent, of whichever thread."""
    if update is not None:
        _Progress.update = update
    now = time.monotonic()
    if now < _Progress.next_at:
        return
    _Progress.next_at = now + SECONDS_BETWEEN_AT
    emit("at", rank=_rank(), update=_Progress.update, stage=stage)


def _rank() -> int | None:
    rank = os.environ.get("RANK")
    return int(rank) if rank is not None else None


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def attempt() -> int:
    """Which launch of the run this process belongs to, from 1."""
    return int(os.environ.get(ATTEMPT, "1"))
