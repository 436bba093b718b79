"""From a request to a page on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ftcore.report.one_run import page_of_run
from ftcore.report.run_view import RunView, view_of
from ftcore.report.several_runs import page_of_runs
from ftcore.report.thin_ranks import read_for_report
from ftcore.spec.errors import CheckpointError
from ftcore.spec.report_request import ReportedRun, ReportRequest
from ftcore.spec.run_dir import write_atomic


def make_page(request: ReportRequest) -> None:
    """Writes request.output. Raises CheckpointError for a folder that holds no run, or a page that can't be written."""
    views = read_views(request.runs)
    text = page_of_run(views[0]) if len(views) == 1 else page_of_runs(views, request.differences, request.notes)
    try:
        write_atomic(Path(request.output), text)
    except OSError as error:
        raise CheckpointError(f"can't write {request.output}: {error.strerror}", where="-o", fix="free some space, or choose another file") from error


def read_views(runs: Sequence[ReportedRun]) -> list[RunView]:
    """The runs, each with a name of its own: the last part of its folder where that tells them apart, else the folder as the user named it."""
    lasts = [Path(run.path).name for run in runs]
    taken: Counter[str] = Counter()
    views = []
    for run, last in zip(runs, lasts, strict=True):
        name = last if lasts.count(last) == 1 else run.shown
        taken[name] += 1
        views.append(view_of(run, read_for_report(Path(run.path)), name if taken[name] == 1 else f"{name} ({taken[name]})"))
    return views
