"""Asks a process of the core what lies in RUN/checkpoints, and shows it as a table."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir
from launcher.children import Child, Event, run_child, stop_signals
from launcher.environment import launch_environment
from launcher.failure import RunStoppedError, as_error, step_failure
from launcher.processes import exit_status
from launcher.progress import Progress
from launcher.record import Record
from launcher.run_folder import shown

GRACE_S = 4.0
"""Between SIGTERM and SIGKILL."""
COLUMNS = ("update", "epoch", "size", "ranks", "stage", "written", "metric", "")
UNITS = ("B", "kB", "MB", "GB", "TB")

Entry = dict[str, Any]
"""A `ftcore.shelf.Entry` as JSON."""


def find_checkpoints(path: Path) -> RunDir:
    """The run folder at `path`; only its checkpoints need to be sound. Raises CheckpointError when it holds neither a run nor checkpoints."""
    run_dir = RunDir(path.absolute())
    if not run_dir.resolved.is_file() and not run_dir.checkpoints.is_dir():
        what = f"{path} holds neither {run_dir.resolved.name} nor checkpoints" if path.is_dir() else f"there is no folder {path}"
        raise CheckpointError(what, where="RUN", fix="name the run folder that ftlaunch printed")
    return run_dir


def ask(run_dir: RunDir, verb: str, *options: str, progress: Progress | None = None) -> tuple[list[Entry], list[str]]:
    """(what is there, names of what a prune removes). Raises the FtError of the process, or RunStoppedError after a signal."""
    record = Record()
    answers: list[Event] = []

    def on_event(event: Event) -> None:
        record.add(event)
        if event["event"] == "shelf":
            answers.append(event)
        elif progress is not None:
            progress.show(event)

    # Not in the run's folder: what only looks must not write there.
    with tempfile.TemporaryDirectory(prefix="ftlaunch-") as folder, stop_signals() as stop:
        log = Path(folder) / "shelf.log"
        environment = launch_environment()
        argv = (sys.executable, "-m", "ftcore.shelf", str(run_dir.path), verb, *options)
        child = Child(argv=argv, environment=environment, log=log, grace_s=GRACE_S, death_signal=signal.SIGKILL)
        status = exit_status(run_child(child, stop, on_event, lambda: None))
        if progress is not None:
            progress.flush()
        if stop.requested:
            raise RunStoppedError(stop.requested, f"ftlaunch checkpoints {verb} {shown(run_dir.path)}")
        if status != 0 or not answers:
            raise as_error(step_failure("the look at the checkpoints", status or 1, record, log), "report it with these lines")
    return answers[-1]["entries"], answers[-1]["gone"]


def render_table(entries: list[Entry]) -> str:
    """A line an entry under a line of titles; what is wrong with one stands below it."""
    rows = [COLUMNS, *(_cells(entry) for entry in entries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)) + f"  {row[-1]}" for row in rows]
    below: list[str] = [lines[0].rstrip()]
    for line, entry in zip(lines[1:], entries, strict=True):
        below += [line.rstrip(), *(f"    {reason}" for reason in entry["wrong"])]
    return "\n".join(below)


def _cells(entry: Entry) -> tuple[str, ...]:
    known = entry["update"]
    marks = ", ".join([*entry["marks"], *([] if entry["state"] == "whole" else [entry["state"]])])
    return (
        entry["name"] if known is None else str(known),
        _or_dash(entry["epoch"]),
        size(entry["bytes"]),
        *(_or_dash(entry[key]) for key in ("world_size", "zero_stage")),
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["time"])) if entry["time"] else "-",
        "-" if entry["metric"] is None else f"{entry['metric']:.4f}",
        marks,
    )


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def size(count: float) -> str:
    """Bytes in the largest unit that leaves at least one, powers of 1000."""
    for unit in UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {UNITS[-1]}"


def freed(entries: Iterable[Entry], gone: list[str]) -> int:
    """Bytes of those that go."""
    return sum(entry["bytes"] for entry in entries if entry["name"] in gone)
