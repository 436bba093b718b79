"""`ftlaunch status RUN`: what a run does now, whatever runs it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from launcher.commands.launch import say
from launcher.verb_options import FOLDER


class StatusCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        run(ctx.params["run"], as_json=ctx.params["as_json"])


command = StatusCommand(
    "status",
    short_help="Say what a run does: its state, progress, jobs and last error.",
    help="Say what the run in RUN does now: here, on other hosts, or as jobs of Slurm. RUN may be the folder of an array: a line each then.",
    params=[click.Argument(["run"], type=FOLDER), click.Option(["--json", "as_json"], is_flag=True, help="Print JSON: an object, or for an array a list.")],
)


def run(path: Path, *, as_json: bool) -> None:
    """Prints the report. Raises CheckpointError when there is no run."""
    from launcher.inspect.report import find_runs, look, render_line, render_report

    runs = find_runs(path)
    is_array = runs[0].path != path.absolute()
    reports = [look(each) for each in runs]
    if as_json:
        found = [asdict(report) for report in reports]
        say(json.dumps(found if is_array else found[0], indent=2, ensure_ascii=False))
    else:
        say("\n".join(render_line(report) if is_array else render_report(report) for report in reports))
