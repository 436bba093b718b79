"""Asks a process of the core about a spec's data: its progress is shown, its answer read. Nothing is left behind."""

from __future__ import annotations

import json
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
from launcher.progress import Progress
from launcher.run_folder import write_files


def ask(verb: str, resolved: ResolvedSpec, request: DataRequest) -> dict[str, Any]:
    """What `python -m ftcore.report.VERB` answers. Progress goes to stderr.

    Raises the FtError of the process, or RunStoppedError after a signal.
    """
    progress = Progress(sys.stderr)
    with tempfile.TemporaryDirectory(prefix="ftlaunch-data-") as name, stop_signals() as stop:
        folder = Path(name)
        paths = DataRequestDir(folder)
        write_files({RunDir(folder).resolved: resolved.to_json(), paths.request: stored_text(request)})
        steps = Steps(folder / "logs", launch_environment(), progress, stop, advice=lambda: f"ftlaunch data {verb}")
        steps.run(f"ftlaunch data {verb}", f"{verb}.log", (sys.executable, "-m", f"ftcore.report.{verb}", name))
        progress.flush()
        answer: dict[str, Any] = json.loads(paths.answer.read_text(encoding="utf-8"))
    return answer
