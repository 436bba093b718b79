"""`ftlaunch doctor RUN`: looks, shows, and writes the page beside the run."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from ftcore.spec.run_dir import RunDir
from launcher.backends.steps import Steps
from launcher.children import stop_signals
from launcher.commands.launch import say
from launcher.environment import launch_environment
from launcher.findings.examine import examine
from launcher.findings.files import findings_html, to_json, write_findings
from launcher.findings.text import render
from launcher.inspect.report import find_runs
from launcher.progress import Progress
from launcher.run_folder import shown


def explain(folder: Path, *, wants_html: bool, is_quiet: bool) -> str:
    """Shows what was found of the run in `folder`, or of each run of an array, unless it `is_quiet`; returns it as JSON, of an array a list.

    Raises CheckpointError when there is no run.
    """
    runs = find_runs(folder)
    texts = []
    for run_dir in runs:
        found = examine(run_dir.path)
        if not is_quiet:
            say(render(found))
        try:
            write_findings(run_dir, found)
        except OSError as error:
            files = "findings.txt and findings.html" if wants_html else "findings.txt"
            say(f"warning: {shown(run_dir.path)}: {files} can't be written: {error.strerror}", err=True)
            continue
        finally:
            texts.append(to_json(found))
        if wants_html:
            _write_html(run_dir)
    if runs[0].path == folder.absolute():
        return texts[0]
    return json.dumps([json.loads(text) for text in texts], indent=2, ensure_ascii=False) + "\n"


def _write_html(run_dir: RunDir) -> None:
    """Asks the core for the page. Raises its FtError."""
    argv = (sys.executable, "-m", "ftcore.report.findings", str(run_dir.path))
    with tempfile.TemporaryDirectory(prefix="ftlaunch-findings-") as folder, stop_signals() as stop:
        Steps(Path(folder), launch_environment(), Progress(sys.stderr), stop, advice=lambda: "look again").run("the page", "page.log", argv)
    say(f"page: {shown(findings_html(run_dir))}", err=True)
