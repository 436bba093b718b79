"""Asks a process of the core about a spec's data: its progress is shown, its answer read."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from ftcore.spec.data_report import DataRequest, DataRequestDir
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from ftcore.spec.stored import stored_text
from launcher.backends.steps import Steps
from launcher.children import stop_signals
from launcher.environment import launch_environment
from launcher.failure import RunFailedError
from launcher.progress import Progress
from launcher.run_folder import write_files


def ask(verb: str, resolved: ResolvedSpec | None, request: DataRequest, *, command_line: str) -> dict[str, Any]:
    """What `python -m ftcore.data_report.VERB` answers. Progress goes to stderr. Nothing is left behind, but for the log of a process that broke.

    `command_line`: what goes on after a stop.

    Raises the FtError of the process, or RunStoppedError after a signal.
    """
    progress = Progress(sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="ftlaunch-data-"))
    is_kept = False
    try:
        paths = DataRequestDir(folder)
        write_files({paths.request: stored_text(request), **({RunDir(folder).resolved: resolved.to_json()} if resolved is not None else {})})
        with stop_signals() as stop:
            steps = Steps(folder / "logs", launch_environment(), progress, stop, advice=lambda: command_line)
            steps.run(f"ftlaunch data {verb}", f"{verb}.log", (sys.executable, "-m", f"ftcore.data_report.{verb}", str(folder)))
        progress.flush()
        answer: dict[str, Any] = json.loads(paths.answer.read_text(encoding="utf-8"))
    except RunFailedError:
        # Its message names the log.
        is_kept = True
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
    return answer
