"""`ftlaunch [launch]`: start a run, or go on with one."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.verb_options import DATA_CHANGE, FILE, FOLDER, RunGiven, arguments, data_change_option, run_options, spec_options

if TYPE_CHECKING:
    from launcher.attempts import Manner


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions(RunGiven):
    """What the command line says."""

    resume: Path | None
    allow_data_change: bool
    dry_run: bool
    no_export: bool
    no_report: bool


class LaunchCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        run(LaunchOptions(**ctx.params))


_OWN = [
    click.Option(["--resume"], type=FOLDER, metavar="RUN", help="Go on with the run in this folder; options of hosts and --zero may change where and how."),
    data_change_option(),
    click.Option(["--dry-run"], is_flag=True, help="Write the run folder with its plan, start no rank."),
    click.Option(["--no-export"], is_flag=True, help="Don't write RUN/model after training."),
    click.Option(["--no-report"], is_flag=True, help="Don't write RUN/report.html at the end."),
]

command = LaunchCommand(
    "launch",
    short_help="Start a run, or go on with one; the verb may be left out.",
    help="Start a run: train what the spec describes on the hosts of a hostfile. KEY=VALUE arguments override values of the spec.",
    params=[
        click.Option(["--spec"], type=FILE, help="The spec, YAML or JSON. Default: ./ftlaunch.yaml if it is there, else an embedded one."),
        *run_options("the run's processes", folder="The run's folder. Default: runs/TIME-MODEL.", own=_OWN),
        arguments("[KEY=VALUE]..."),
    ],
)


def run(given: LaunchOptions) -> None:
    """Launches. Raises the FtError of what went wrong."""
    from launcher.attempts import Manner
    from launcher.early_stops import early_stops
    from launcher.environment import read_env_file

    odd = next((text for text in given.arguments if "=" not in text), None)
    if odd is not None:
        raise click.UsageError(f"unexpected argument '{odd}': a value of the spec is KEY=VALUE, a spec file is --spec FILE, and a verb comes first")
    env_file = str(given.env_file.absolute()) if given.env_file is not None else ""
    variables = read_env_file(given.env_file) if given.env_file is not None else {}
    if variables:
        say(f"environment: {', '.join(variables)} (from {given.env_file})")
    if given.allow_data_change and given.resume is None:
        raise click.UsageError("--allow-data-change says how a run goes on: it goes with --resume RUN")
    allowed = time.time() if given.allow_data_change else 0.0
    manner = Manner(
        dry_run=given.dry_run,
        exports=not given.no_export,
        reports=not given.no_report,
        variables=variables,
        env_file=env_file,
        force=given.force,
        data_change_allowed=allowed,
    )
    with early_stops():
        if given.resume is not None:
            _resume(given, given.resume, manner)
        else:
            _start(given, manner)


def say(text: str, *, err: bool = False) -> None:
    """A line on the terminal; an output that is full or gone ends the showing, never the run."""
    with contextlib.suppress(OSError):
        click.echo(text, err=err)


def _start(given: LaunchOptions, manner: Manner) -> None:
    from launcher.launching import NewRun, reach_with_room, start_new
    from launcher.resolve import read_and_resolve
    from launcher.run_folder import RUNS, make_default_folder, make_named_folder

    options = spec_options(given, done="launched")
    resolution = read_and_resolve(options)
    say(f"spec: {resolution.origin}")
    for warning in resolution.warnings:
        say(f"warning: {warning}", err=True)
    resolved = resolution.resolved
    approach = reach_with_room(resolved, manner, (given.output or Path.cwd() / RUNS).absolute())
    if given.output is not None:
        run_dir = make_named_folder(given.output)
    else:
        run_dir = make_default_folder(Path.cwd(), resolved.spec.model.model_name_or_path, time.localtime())
    new = NewRun(spec_text=resolution.spec_text, ds_config=resolution.ds_config, resolved=resolved, zero_config=resolution.zero_config)
    start_new(run_dir, new, manner, approach)


def _resume(given: LaunchOptions, run_path: Path, manner: Manner) -> None:
    from launcher.events_file import read_events
    from launcher.launching import start_again
    from launcher.run_folder import find_run
    from launcher.spec_source import Options

    refused = changed_by(given)
    if refused:
        raise click.UsageError(f"--resume goes on with a run as it is; {', '.join(refused)} would change it: start a new run for that")
    run_dir = find_run(run_path)
    before = next((event.get("env_file") for event in reversed(read_events(run_dir, "launch_started"))), "")
    if before and not manner.env_file:
        say(f"warning: the last launch of this run had --env-file {before}; this one has none of its variables", err=True)
    options = spec_options(given, done="launched")
    say(f"spec: {run_path / run_dir.resolved.name}, as the run was started{'' if options == Options() else ', with what the options change'}")
    if given.allow_data_change:
        say(f"--allow-data-change: should the training data differ from the checkpoint's, they are taken as they are now. {DATA_CHANGE}.")
    start_again(run_dir, options, manner)


def changed_by(given: LaunchOptions) -> list[str]:
    """The options given that make no sense for a run that is there."""
    return [f"--{name}" for name in ("spec", "output") if getattr(given, name) is not None]
