"""`ftlaunch logs RUN`: the logs of all ranks, whole lines, also while they grow."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from launcher.verb_options import FOLDER


class LogsCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        run(**ctx.params)


command = LogsCommand(
    "logs",
    short_help="Show the logs of a run's ranks.",
    help="Show the logs of the ranks of RUN, one after the other; with -f whole lines as they come, also of later attempts, until the run has ended.",
    params=[
        click.Argument(["run"], type=FOLDER),
        click.Option(["--follow", "-f", "follow"], is_flag=True, help="Go on showing what is written, until the run has ended."),
        click.Option(["--rank"], type=click.IntRange(0), metavar="N", help="Of this rank alone."),
        click.Option(["--attempt"], type=click.IntRange(1), metavar="N", help="Of this launch of the run. Default: the newest."),
        click.Option(["--prefix/--no-prefix", "prefix"], default=None, help="Whose line it is before each line. Default: where several logs are, or can come."),
        click.Option(["--all", "everything"], is_flag=True, help="Also what is no rank's: preparation, supervisors, export, Slurm."),
    ],
)


def run(run: Path, *, follow: bool, rank: int | None, attempt: int | None, prefix: bool | None, everything: bool) -> None:
    """Writes the logs to stdout. Raises CheckpointError or SpecError when there are none."""
    from launcher.inspect.logs import Wanted, follow_logs, show_logs
    from launcher.run_folder import find_run

    run_dir = find_run(run, "logs")
    wanted = Wanted(attempt=attempt, rank=rank, everything=everything)
    (follow_logs if follow else show_logs)(run_dir, wanted, _write, prefixes=prefix)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
