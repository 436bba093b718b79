"""Has the core draw a page: for the verb, and at the end of a launch."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TextIO

from ftcore.spec.errors import FtError
from ftcore.spec.report_request import ReportedRun, ReportRequest, ReportRequestDir
from ftcore.spec.run_dir import RunDir
from launcher.backends.steps import Steps
from launcher.children import stop_signals
from launcher.environment import launch_environment
from launcher.failure import RunFailedError, first_line
from launcher.progress import Progress
from launcher.run_folder import shown, write_files


def make_page(request: ReportRequest, stream: TextIO) -> None:
    """Writes request.output; what there is to tell meanwhile goes to `stream`. Nothing is left behind, but for the log of a process that broke.

    Raises the FtError of the process, or RunStoppedError after a signal.
    """
    progress = Progress(stream)
    folder = Path(tempfile.mkdtemp(prefix="ftlaunch-report-"))
    is_kept = False
    try:
        write_files({ReportRequestDir(folder).request: request.to_json()})
        with stop_signals() as stop:
            steps = Steps(folder / "logs", launch_environment(), progress, stop, advice=lambda: "make the report again: ftlaunch report")
            steps.run("the report", "report.log", (sys.executable, "-m", "ftcore.report", str(folder)))
        progress.flush()
    except RunFailedError:
        # Its message names the log.
        is_kept = True
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def write_at_end(run_dir: RunDir, progress: Progress) -> None:
    """RUN/report.html of a run that has ended well. Never a reason for a launch to fail: what went wrong is a line on the terminal."""
    finished = ReportedRun(path=str(run_dir.path), shown=shown(run_dir.path), state="finished")
    try:
        make_page(ReportRequest(runs=(finished,), output=str(run_dir.report)), sys.stderr)
    except (FtError, OSError) as error:
        why = first_line(error) if isinstance(error, FtError) else str(error)
        progress.line(f"no report was written: {why}; to try again: ftlaunch report {shown(run_dir.path)}")
        return
    progress.line(f"  report            {shown(run_dir.report)}")
