"""`ftlaunch diff A B`: what differs between two runs, or two specs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from launcher.commands.launch import say
from launcher.verb_options import FOLDER


class DiffCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        run(ctx.params["a"], ctx.params["b"], as_json=ctx.params["as_json"])


command = DiffCommand(
    "diff",
    short_help="Say what differs between two runs, or two specs.",
    help="Say what differs between A and B: two run folders (spec with who set each value, code, data, environment, results), two spec files, "
    "or a spec file and a run. The exit status says nothing about differences.",
    params=[
        click.Argument(["a"], type=FOLDER),
        click.Argument(["b"], type=FOLDER),
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object."),
    ],
)


def run(a: Path, b: Path, *, as_json: bool) -> None:
    """Prints the comparison. Raises SpecError or CheckpointError when a side can't be read."""
    from launcher.difference.compare import as_data, render
    from launcher.difference.sides import read_side

    one, other = read_side(a), read_side(b)
    say(json.dumps(as_data(one, other), indent=2, ensure_ascii=False) if as_json else render(one, other))
