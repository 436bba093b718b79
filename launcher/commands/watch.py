"""`ftlaunch watch RUN`: a run, live in the terminal."""

from __future__ import annotations

from pathlib import Path

import click

from launcher.verb_options import FOLDER, FiniteRange

LIVE_INTERVAL_S, PLAIN_INTERVAL_S = 1.0, 30.0


class WatchCommand(click.Command):
    """Calls `run` with the parsed options, and ends with its status."""

    def invoke(self, ctx: click.Context) -> int:
        """Raises the FtError of what went wrong."""
        return run(ctx.params["run"], interval_s=ctx.params["interval"], once=ctx.params["once"])


command = WatchCommand(
    "watch",
    short_help="Watch a run: loss, speed, memory and phases of each rank, live.",
    help="Show the run in RUN while it goes on: loss, learning rate, gradient norm, tokens/s, memory and phases of each rank, the time left, the newest "
    "checkpoint and evaluation, findings and events. q or Ctrl-C leaves; the run never notices. Ends with the run. Without a terminal it prints a snapshot "
    "now and then. RUN may be the folder of an array.",
    params=[
        click.Argument(["run"], type=FOLDER),
        click.Option(["--once"], is_flag=True, help="Print one snapshot and end."),
        click.Option(
            ["--interval"],
            type=FiniteRange(0.1, 3600),
            metavar="SECONDS",
            help=f"Seconds between two looks. Default: {LIVE_INTERVAL_S:g}, without a terminal {PLAIN_INTERVAL_S:g}.",
        ),
    ],
)


def run(path: Path, *, interval_s: float | None, once: bool) -> int:
    """Shows the run or runs; returns the exit status. Raises CheckpointError when there is none."""
    from launcher.inspect.report import find_runs
    from launcher.watching.follow import Follower
    from launcher.watching.live import is_live, print_once, show_live, show_plain, standard_console
    from launcher.watching.view import View

    followers = [Follower(each) for each in find_runs(path)]

    def look() -> list[View]:
        return [each.poll() for each in followers]

    console = standard_console()
    views = look()
    if once or all(each.is_over for each in views):
        print_once(console, views)
        return 0
    if is_live(console):
        return show_live(console, look, interval_s or LIVE_INTERVAL_S)
    show_plain(console, look, interval_s or PLAIN_INTERVAL_S)
    return 0
