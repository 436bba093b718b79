"""`ftlaunch export RUN --to DIR`: write a run's newest checkpoint in Hugging Face's format."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import click


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What the command line says."""

    run: Path
    to: Path
    form: str


class ExportCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        run(ExportOptions(**ctx.params))


command = ExportCommand(
    "export",
    short_help="Write a run's model in Hugging Face's format.",
    help="Write the newest whole checkpoint of RUN as a folder that from_pretrained reads, and check it by loading it back.",
    params=[
        click.Argument(["run"], type=click.Path(path_type=Path)),
        click.Option(["--to"], type=click.Path(path_type=Path), required=True, help="The folder to write; new, empty, or an earlier export."),
        click.Option(
            ["--format", "form"],
            type=click.Choice(["auto", "adapter", "merged", "hf"]),
            default="auto",
            show_default=True,
            help="adapter: LoRA weights alone; merged: LoRA merged into the base; hf: a full model. auto: adapter for a LoRA run, else hf.",
        ),
    ],
)


def run(given: ExportOptions) -> None:
    """Exports in a process of its own, with its output in the run's logs. Raises the FtError of what went wrong."""
    import sys

    from launcher.launching import export_run
    from launcher.run_folder import find_run

    run_dir = find_run(given.run)
    argv = (sys.executable, "-m", "ftcore.export", str(run_dir.path), "--to", str(given.to.absolute()), "--format", given.form)
    export_run(run_dir, argv)
    with contextlib.suppress(OSError):
        click.echo(f"exported to {given.to}")
