"""`ftlaunch submit [SPEC]`: queue a run, or an array of them, as jobs of Slurm; or render a manifest for another engine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.commands.launch import say
from launcher.verb_options import DATA_CHANGE, FILE, FOLDER, arguments, data_change_option, env_file_option, force_option, set_option, spec_options, zero_option

if TYPE_CHECKING:
    from launcher.submission.request import Asked, Run
    from launcher.submission.submitting import How


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """What the command line says."""

    arguments: tuple[str, ...]
    spec: Path | None
    nodes: int | None
    slots_per_node: int | None
    time: str | None
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    sbatch_args: tuple[str, ...]
    cpu: bool
    zero: int | None
    sets: tuple[str, ...]
    arrays: tuple[str, ...]
    chain: int
    output: Path | None
    resume: Path | None
    allow_data_change: bool
    env_file: Path | None
    no_export: bool
    force: bool
    dry_run: bool
    to: str
    image: str
    volume: str
    accelerator: str


class SubmitCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        run(SubmitOptions(**ctx.params))


command = SubmitCommand(
    "submit",
    short_help="Queue a run as a Slurm job; or an array of runs.",
    help="Queue the run that SPEC describes as a job of Slurm. Everything is checked first; options stand over the spec's cluster.scheduler. "
    "KEY=VALUE arguments override values of the spec.",
    params=[
        arguments("[SPEC] [KEY=VALUE]..."),
        click.Option(["--spec"], type=FILE, help="The spec; the same as SPEC."),
        click.Option(["--nodes"], type=int, metavar="N", help="Hosts of the job. Default: 1."),
        click.Option(["--slots-per-node"], type=int, metavar="N", help="Ranks on each host, one an accelerator."),
        click.Option(["--time"], metavar="TIME", help="Time limit: 2h, 90m, or as Slurm writes it (2:00:00; a number alone is minutes)."),
        click.Option(["--partition", "-p"], help="Partition of the job."),
        click.Option(["--account", "-A"], help="Account that the job is charged to."),
        click.Option(["--qos"], help="Quality of service."),
        click.Option(["--constraint", "-C"], help="Features that the hosts must have."),
        click.Option(["--sbatch-arg", "sbatch_args"], multiple=True, metavar="--NAME=VALUE", help="One more option for sbatch; may be given again."),
        click.Option(["--cpu"], is_flag=True, help="Ranks run on CPUs: no accelerator is asked for. Also with DS_ACCELERATOR=cpu."),
        zero_option(),
        set_option(),
        click.Option(["--array", "arrays"], multiple=True, metavar="KEY=V1,V2", help="One run for each value, in a folder each; again: each combination."),
        click.Option(["--chain"], type=click.IntRange(1, 100), default=1, metavar="N", help="N jobs, each going on where the one before stopped."),
        click.Option(["--output", "-o"], type=FOLDER, help="The run's folder; with --array, of the runs' folders. Default: runs/TIME-MODEL."),
        click.Option(["--resume"], type=FOLDER, metavar="RUN", help="Queue a job that goes on with the run in this folder."),
        data_change_option(),
        env_file_option("the run's processes, read again by each start of the job"),
        click.Option(["--no-export"], is_flag=True, help="Don't write RUN/model after training."),
        force_option(),
        click.Option(["--dry-run"], is_flag=True, help="Print the job script or the manifest; make and submit nothing."),
        click.Option(["--to"], type=click.Choice(["slurm", "k8s", "sky"]), default="slurm", help="k8s and sky: print a manifest (with --dry-run)."),
        click.Option(["--image"], default="", help="Container image with ftlaunch in it (k8s, sky)."),
        click.Option(["--volume"], default="", metavar="NAME", help="Claim (k8s) or volume (sky) that holds the run folder and the caches."),
        click.Option(["--accelerator"], default="", metavar="NAME", help="Kind of accelerator (sky), for example H100."),
    ],
)


def run(given: SubmitOptions) -> None:
    """Submits. Raises the FtError of what went wrong."""
    from launcher.environment import read_env_file
    from launcher.submission.request import Asked
    from launcher.submission.submitting import How

    asked = Asked(**{name: getattr(given, name) for name in Asked.__slots__})
    variables = read_env_file(given.env_file) if given.env_file is not None else {}
    on_cpu = given.cpu or {**os.environ, **variables}.get("DS_ACCELERATOR") == "cpu"
    if given.allow_data_change and given.resume is None:
        raise click.UsageError("--allow-data-change says how a run goes on: it goes with --resume RUN")
    allowed = given.allow_data_change
    how = How(on_cpu=on_cpu, chain=given.chain, env_file=given.env_file, exports=not given.no_export, force=given.force, allow_data_change=allowed)
    if given.to != "slurm":
        _render(given, asked, how)
    elif given.resume is not None:
        _again(given, given.resume, asked, how)
    else:
        _new(given, asked, how)


def _new(given: SubmitOptions, asked: Asked, how: How) -> None:
    from launcher.run_folder import shown
    from launcher.submission.submitting import require_room_there, script_for, submit_new

    runs = _resolved(given, asked)
    if given.dry_run:
        for each in runs:
            require_room_there(each.resolution.resolved, how, refuses=False)
            folder = (given.output or Path("runs") / "TIME-MODEL").absolute()
            say(script_for(folder / each.element.label if each.element.label else folder, each.scheduler, how).rstrip("\n"))
        say("dry run: nothing was made or submitted", err=True)
        return
    for each in runs:
        require_room_there(each.resolution.resolved, how)
    _tell_variables(runs[0])
    done = submit_new(runs, given.output, how)
    for run_dir, submission in done:
        say(f"{shown(run_dir.path)}: job {', then '.join(submission.jobs)}")
    first = done[0][0].path
    _tell_next(shown(first.parent if runs[0].element.label else first))


def _again(given: SubmitOptions, path: Path, asked: Asked, how: How) -> None:
    from launcher.run_folder import find_run, shown
    from launcher.submission.submitting import submit_again

    options = spec_options(given, done="submitted")
    changing = {"SPEC": options.spec_path, "--zero": given.zero, "KEY=VALUE": options.sets, "--array": given.arrays, "-o": given.output}
    refused = [name for name, value in changing.items() if value not in (None, ())]
    if refused or given.dry_run:
        raise click.UsageError(f"--resume queues a run as it is; {', '.join(refused or ['--dry-run'])} can't stand beside it")
    run_dir = find_run(path)
    if how.allow_data_change:
        say(f"--allow-data-change: should the training data differ from the checkpoint's, they are taken as they are then. {DATA_CHANGE}.")
    submission = submit_again(run_dir, asked, how)
    say(f"{shown(run_dir.path)}: job {', then '.join(submission.jobs)}")
    _tell_next(shown(run_dir.path))


def _render(given: SubmitOptions, asked: Asked, how: How) -> None:
    from launcher.submission.manifests import Container, render_manifest
    from launcher.submission.submitting import require_room_there

    if not given.dry_run:
        raise click.UsageError(f"--to {given.to} renders a manifest and starts nothing: add --dry-run, and hand its output to the engine's own command")
    refused = _unmapped(given, how)
    if refused:
        raise click.UsageError(f"a manifest for {given.to} has no place for {', '.join(refused)}: leave {'it' if len(refused) == 1 else 'them'} out")
    container = Container(
        image=given.image,
        volume=given.volume,
        run=str(given.output or ""),
        accelerator=given.accelerator,
        on_cpu=how.on_cpu,
        exports=how.exports,
        arguments=(
            *(("--zero", str(given.zero)) if given.zero is not None else ()),
            *(word for text in spec_options(given, done="submitted").sets for word in ("--set", text)),
        ),
    )
    first = _resolved(given, asked)[0]
    require_room_there(first.resolution.resolved, how, refuses=False)
    text = render_manifest(given.to, first, container)
    say(text.rstrip("\n"))


def _unmapped(given: SubmitOptions, how: How) -> list[str]:
    """The options that were given and that the manifest can't say."""
    values = {
        "--array": given.arrays or None,
        "--chain": given.chain if given.chain > 1 else None,
        "--resume": given.resume,
        "--env-file": given.env_file,
        "--partition": given.partition,
        "--account": given.account,
        "--qos": given.qos,
        "--constraint": given.constraint,
        "--sbatch-arg": given.sbatch_args or None,
        "--time": given.time if given.to == "sky" else None,
        "--accelerator": (given.accelerator or None) if given.to == "k8s" or how.on_cpu else None,
    }
    return [name for name, value in values.items() if value is not None]


def _resolved(given: SubmitOptions, asked: Asked) -> tuple[Run, ...]:
    from ftcore.spec.errors import FtError
    from launcher.submission.option_names import in_options_words
    from launcher.submission.request import resolve_runs
    from launcher.submission.scheduler_rules import submission_warnings

    try:
        runs = resolve_runs(spec_options(given, done="submitted"), asked, given.arrays)
    except FtError as error:
        raise type(error)(in_options_words(error.problems, given.arrays)) from error
    say(f"spec: {runs[0].resolution.origin}", err=given.dry_run)
    for warning in (*runs[0].resolution.warnings, *submission_warnings(runs[0].scheduler)):
        say(f"warning: {warning}", err=True)
    return runs


def _tell_variables(first: Run) -> None:
    """Which variables reach the job, and which secrets don't."""
    from launcher.submission.submitting import passed_variables

    passed = passed_variables(os.environ, first.resolution.resolved.spec.cluster.forward_env)
    say(f"environment of the job: {', '.join(passed.names)}")
    if passed.withheld:
        why = "Slurm keeps a job's environment on the controller's disk"
        say(f"warning: {', '.join(passed.withheld)} may be secret and stay here, since {why}; --env-file hands them over without that", err=True)


def _tell_next(name: str) -> None:
    import shlex

    quoted = shlex.quote(name)
    say(f"next: ftlaunch status {quoted}   (also: ftlaunch logs -f {quoted}, ftlaunch cancel {quoted})")
