"""`ftlaunch export RUN --to DIR`: write one of a run's checkpoints in Hugging Face's format."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import click

from launcher.verb_options import FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What the command line says."""

    run: Path
    to: Path
    form: str
    best: bool
    update: int | None
    adapter: str


class ExportCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        run(ExportOptions(**ctx.params))


command = ExportCommand(
    "export",
    short_help="Write a run's model in Hugging Face's format.",
    help="Write a checkpoint of RUN as a folder that from_pretrained reads, and check it by loading it back.",
    params=[
        click.Argument(["run"], type=FOLDER),
        click.Option(["--to"], type=FOLDER, required=True, help="The folder to write; new, empty, or an earlier export."),
        click.Option(
            ["--format", "form"],
            type=click.Choice(["auto", "adapter", "merged", "hf"]),
            default="auto",
            show_default=True,
            help="adapter: LoRA weights alone; merged: LoRA merged into the base; hf: a full model. auto: adapter for a LoRA run, else hf.",
        ),
        click.Option(["--adapter"], metavar="NAME", default="", help="Of several adapters, write this one alone. Needed to merge one."),
        click.Option(["--best"], is_flag=True, help="Take the checkpoint with the lowest checkpoint.metric_for_best_model."),
        click.Option(["--update"], type=click.IntRange(1), metavar="N", help="Take the checkpoint after N updates. Default: the newest whole one."),
    ],
)


def run(given: ExportOptions) -> None:
    """Exports in a process of its own, with its output in the run's logs. Raises the FtError of what went wrong."""
    import sys

    from launcher.launching import export_run
    from launcher.run_folder import find_run

    if given.best and given.update is not None:
        raise click.UsageError("--best and --update are both given: each names a checkpoint")
    run_dir = find_run(given.run, where="RUN")
    which = ("--best",) if given.best else ("--update", str(given.update)) if given.update is not None else ()
    adapter = ("--adapter", given.adapter) if given.adapter else ()
    argv = (sys.executable, "-m", "ftcore.export", str(run_dir.path), "--to", str(given.to.absolute()), "--format", given.form, *which, *adapter)
    export_run(run_dir, argv)
    with contextlib.suppress(OSError):
        click.echo(f"exported to {given.to}")
