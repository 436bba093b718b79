"""The end of a scaling test: its table, its page, and the error that its exit status comes from."""

from __future__ import annotations

import sys

from ftcore.spec.errors import FtError, TrainingError
from ftcore.spec.scale_result import BAD_STATES, ScaleDir, ScalePoint, ScaleResult
from launcher.backends.steps import Steps
from launcher.children import stop_signals
from launcher.environment import launch_environment
from launcher.failure import RunStoppedError, first_line
from launcher.progress import Progress
from launcher.run_folder import shown, write_files
from launcher.scaling.table import render_result


class PointsMissingError(FtError):
    """Points could not be measured; the status is that of the first one."""

    def __init__(self, points: list[ScalePoint]) -> None:
        told = "; ".join(f"{point.name}: {point.reason}" for point in points)
        count = f"{len(points)} point{'s' if len(points) > 1 else ''}"
        super().__init__(f"{count} could not be measured: {told}", where="scale", fix="the other points are kept; ftlaunch scale FOLDER tries these again")
        self.exit_status = points[0].exit_status or 1


def show_result(folder: ScaleDir, result: ScaleResult, progress: Progress) -> None:
    """Prints the table, keeps it as scale.txt, and makes the page. Raises CheckpointError when the folder can't be written to."""
    text = render_result(result)
    write_files({folder.table: text + "\n"})
    progress.line(f"\n{text}\n")
    page = make_page(folder, progress) if result.measured else False
    progress.line(f"result: {shown(folder.result)}" + (f"\npage: {shown(folder.page)}" if page else ""))


def make_page(folder: ScaleDir, progress: Progress) -> bool:
    """Whether scale.html was made. What was measured does not depend on it, so that a page that can't be made is told and no more.

    Raises RunStoppedError after a signal.
    """
    try:
        with stop_signals() as stop:
            steps = Steps(folder.logs, launch_environment(), progress, stop, advice=lambda: f"ftlaunch scale {shown(folder.path)}")
            steps.run("the page", "page.log", (sys.executable, "-m", "ftcore.report.scale", str(folder.path)))
    except RunStoppedError:
        raise
    except FtError as error:
        progress.line(f"warning: no page: {first_line(error)}; see {shown(folder.logs / 'page.log')}")
        return False
    return True


def require_good(result: ScaleResult) -> None:
    """Raises TrainingError when losses differ, PointsMissingError when points could not be measured."""
    agreement = result.agreement
    if agreement is not None and not agreement.passed:
        gap = "a loss is missing or no number" if agreement.largest_loss_gap is None else f"largest relative distance {agreement.largest_loss_gap:.1e}"
        what = f"the points did not train the same: {gap}, tolerance {agreement.tolerance:.2g}"
        fix = "ftlaunch verify-loss says in which split training differs; --tolerance sets another bound"
        raise TrainingError(what, where="scale", fix=fix)
    missing = [point for point in result.points if point.state in BAD_STATES]
    if missing:
        raise PointsMissingError(missing)
