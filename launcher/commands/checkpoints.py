"""`ftlaunch checkpoints ls|verify|prune RUN`: what a run has saved, whether it is whole, and room on the disk."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import click

from launcher.verb_options import FOLDER

_RUN = click.Argument(["run"], type=FOLDER)
_JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object.")


class Ls(click.Command):
    """Lists."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        _show(ctx.params["run"], "ls", as_json=ctx.params["as_json"])


class Verify(click.Command):
    """Reads every file and says what is damaged."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises CheckpointError when a checkpoint is damaged."""
        verify(ctx.params["run"], as_json=ctx.params["as_json"])


class Prune(click.Command):
    """Removes old checkpoints."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        options = {name: ctx.params[name] for name in ("keep", "dry_run", "leftovers", "as_json")}
        prune(ctx.params["run"], **options)


command = click.Group(
    "checkpoints",
    short_help="List, check or thin out a run's checkpoints.",
    help="List, check or thin out the checkpoints of a run. It need not be whole otherwise.",
    commands=[
        Ls("ls", help="List RUN's checkpoints, newest first; sizes are looked at, digests are not.", params=[_RUN, _JSON]),
        Verify("verify", help="Read every file of RUN's checkpoints and compare it with its digest. Exit status 5 when one is damaged.", params=[_RUN, _JSON]),
        Prune(
            "prune",
            help="Remove RUN's old checkpoints. The newest whole one and the best one always stay; each is read whole before others go.",
            params=[
                _RUN,
                click.Option(["--keep"], type=click.IntRange(1), help="How many whole ones stay. Default: the run's checkpoint.save_total_limit."),
                click.Option(["--leftovers"], is_flag=True, help="Also remove unfinished saves, those set aside as damaged, and unfinished deletions."),
                click.Option(["--dry-run"], is_flag=True, help="Say what would go, remove nothing."),
                _JSON,
            ],
        ),
    ],
)


def verify(run: Path, *, as_json: bool) -> None:
    """Prints a line a checkpoint. Raises CheckpointError, after the report, when one is damaged."""
    from ftcore.spec.errors import CheckpointError

    entries = _show(run, "verify", as_json=as_json)
    damaged = [entry["name"] for entry in entries if entry["state"] == "damaged"]
    if damaged:
        whole = any(entry["state"] == "whole" for entry in entries)
        fix = "a resume passes them over and goes on from the newest whole one" if whole else "put the damaged files back: no resume is possible without them"
        count = sum(entry["state"] in ("whole", "damaged") for entry in entries)
        raise CheckpointError(f"{len(damaged)} of {count} checkpoints damaged: {', '.join(damaged)}", where=str(run / "checkpoints"), fix=fix)


def prune(run: Path, *, keep: int | None, dry_run: bool, leftovers: bool, as_json: bool) -> None:
    """Removes what is beyond `keep`. Raises CheckpointError while a launch owns the folder."""
    from ftcore.spec.resolved import load_resolved
    from launcher.run_folder import locked
    from launcher.shelving import ask, find_checkpoints, freed, size

    run_dir = find_checkpoints(run)
    kept = keep if keep is not None else load_resolved(run_dir.resolved).spec.checkpoint.save_total_limit
    options = ["--keep", str(kept), *(["--leftovers"] if leftovers else []), *(["--dry-run"] if dry_run else [])]
    with locked(run_dir):
        entries, gone = ask(run_dir, "prune", *options, progress=_progress(as_json=as_json))
    total = freed(entries, gone)
    if as_json:
        _say(json.dumps({"removed": gone, "bytes": total, "dry_run": dry_run}, indent=2))
        return
    for name in gone:
        _say(f"{'would remove' if dry_run else 'removed'} {name}")
    _say(f"{size(total)} {'would be freed' if dry_run else 'freed'}" if gone else "nothing to remove")


def _show(run: Path, verb: str, *, as_json: bool) -> list[dict[str, Any]]:
    from launcher.shelving import ask, find_checkpoints, render_table

    entries, _ = ask(find_checkpoints(run), verb, progress=_progress(as_json=as_json or verb == "ls"))
    _say(json.dumps({"checkpoints": entries}, indent=2) if as_json else render_table(entries) if entries else "no checkpoints")
    return entries


def _progress(*, as_json: bool) -> Any:
    from launcher.progress import Progress

    return None if as_json else Progress(sys.stdout)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        click.echo(text)
