"""Asks a process of the core for the summary of a folder's traces."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from ftcore.spec.errors import CheckpointError
from launcher.backends.steps import Steps
from launcher.children import stop_signals
from launcher.environment import launch_environment
from launcher.failure import RunFailedError
from launcher.progress import Progress


def summarise(folder: Path, output: Path, *, command_line: str) -> dict[str, Any]:
    """The summary of the traces in `folder`, or in a run's profile/; it is written into `output` as summary.json and summary.html.

    Raises CheckpointError without traces or where `output` can't be written, or RunStoppedError after a signal.
    """
    _require_writable(output)
    logs = Path(tempfile.mkdtemp(prefix="ftlaunch-profile-"))
    is_kept = False
    progress = Progress(sys.stderr)
    try:
        with stop_signals() as stop:
            steps = Steps(logs, launch_environment(), progress, stop, advice=lambda: command_line)
            steps.run("ftlaunch profile", "summary.log", (sys.executable, "-m", "ftcore.trace_summary", str(folder), str(output)))
        progress.flush()
        summary: dict[str, Any] = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    except RunFailedError:
        # Its message names the log.
        is_kept = True
        raise
    finally:
        if not is_kept:
            shutil.rmtree(logs, ignore_errors=True)
    return summary


def _require_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{folder} can't be made: {error.strerror}", where="--output", fix="name a folder that you may write to") from error
    if not os.access(folder, os.W_OK):
        raise CheckpointError(f"{folder} can't be written to", where="--output", fix="name a folder of your own with -o")
