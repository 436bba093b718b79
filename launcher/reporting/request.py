"""What a report is asked to show: the runs with their states, where the page goes, and what differs between several runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ftcore.spec.errors import CheckpointError, Problem
from ftcore.spec.report_request import ReportedRun, ReportRequest
from ftcore.spec.run_dir import RunDir
from launcher.inspect.report import find_runs, look
from launcher.reporting.differences import differences_of
from launcher.run_folder import shown

NAME_LENGTH = 80


def report_request(folders: Sequence[Path], output: Path | None) -> ReportRequest:
    """The request for the runs in `folders`; a folder of several runs stands for all of them.

    Raises CheckpointError that names every folder without a run.
    """
    runs = _runs(folders)
    differences, notes = differences_of([run.path for run in runs]) if len(runs) > 1 else ((), ())
    return ReportRequest(
        runs=tuple(reported(run) for run in runs),
        output=str(output_file(runs, output)),
        differences=differences,
        notes=notes,
    )


def _runs(folders: Sequence[Path]) -> list[RunDir]:
    found: list[RunDir] = []
    problems: list[Problem] = []
    for folder in folders:
        try:
            found += [run for run in find_runs(folder) if run not in found]
        except CheckpointError as error:
            problems += error.problems
    if problems:
        raise CheckpointError(problems)
    return found


def reported(run_dir: RunDir) -> ReportedRun:
    """A run with its state; without one where its spec is of another version, or damaged: the page tells what its other files say."""
    try:
        seen = look(run_dir)
    except CheckpointError:
        return ReportedRun(path=str(run_dir.path), shown=shown(run_dir.path))
    return ReportedRun(path=str(run_dir.path), shown=shown(run_dir.path), state=seen.state, why=seen.last_error or seen.why)


def output_file(runs: Sequence[RunDir], output: Path | None) -> Path:
    """Where the page goes: `output`, or report.html in it where it is a folder; else RUN/report.html, or for several runs a file in the current folder."""
    if output is not None:
        return (output / "report.html" if output.is_dir() else output).absolute()
    if len(runs) == 1:
        return runs[0].report
    names = "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", run.path.name).strip("-.") or "run" for run in runs)
    return Path.cwd() / f"report-{names if len(names) <= NAME_LENGTH else f'{len(runs)}-runs'}.html"
