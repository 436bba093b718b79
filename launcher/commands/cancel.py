"""`ftlaunch cancel RUN`: end a run here, on another host or in Slurm; it can go on later."""

from __future__ import annotations

from pathlib import Path

import click

from launcher.commands.launch import say
from launcher.verb_options import FOLDER


class CancelCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        run(ctx.params["run"], save=ctx.params["save"])


command = CancelCommand(
    "cancel",
    short_help="End a run, or take its jobs out of the queue.",
    help="End the run in RUN and take its jobs out of the queue; nothing of it is left afterwards, and it can go on later. RUN may be the folder of an array.",
    params=[click.Argument(["run"], type=FOLDER), click.Option(["--save"], is_flag=True, help="Let it save a checkpoint first.")],
)


def run(path: Path, *, save: bool) -> None:
    """Cancels each run. Raises ClusterError, after trying all, with what is left."""
    from ftcore.spec.errors import ClusterError, Problem
    from launcher.inspect.cancel import cancel
    from launcher.inspect.report import find_runs

    problems: list[Problem] = []
    for run_dir in find_runs(path):
        try:
            cancel(run_dir, say, save=save)
        except ClusterError as error:
            problems += error.problems
    if problems:
        raise ClusterError(problems)
