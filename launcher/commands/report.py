"""`ftlaunch report RUN...`: what a run, or several side by side, did, as one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from launcher.commands.launch import say
from launcher.verb_options import FOLDER


class ReportCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        run(ctx.params["runs"], output=ctx.params["output"])


command = ReportCommand(
    "report",
    short_help="Write an HTML page of a run, or of several side by side.",
    help="Write one HTML file of the run in RUN: losses, evaluations, speed, where the time went, memory, data, events, spec, environment, cost. "
    "Of several runs: a table and curves side by side, and what differs between them. RUN may be the folder of an array. The file needs nothing beside it.",
    params=[
        click.Argument(["runs"], type=FOLDER, nargs=-1, required=True, metavar="RUN..."),
        click.Option(["--output", "-o"], type=FOLDER, help="The file. Default: RUN/report.html; of several runs ./report-NAMES.html."),
    ],
)


def run(runs: tuple[Path, ...], *, output: Path | None) -> None:
    """Writes the page and says where it is. Raises CheckpointError for a folder without a run, or a page that can't be written."""
    from launcher.reporting.page import make_page
    from launcher.reporting.request import report_request
    from launcher.run_folder import shown

    request = report_request(runs, output)
    make_page(request, sys.stderr)
    say(f"report: {shown(Path(request.output))}")
