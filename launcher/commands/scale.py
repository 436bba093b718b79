"""`ftlaunch scale SPEC`: how a run would go on other numbers of ranks, measured or simulated."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import isdir
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.verb_options import (
    FILE,
    FOLDER,
    SpecGiven,
    arguments,
    env_file_option,
    filter_options,
    force_option,
    hosts_option,
    set_option,
    spec_options,
    zero_option,
)

if TYPE_CHECKING:
    from launcher.scaling.start import Subject
    from launcher.scaling.sweep import Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOptions(SpecGiven):
    """What the command line says."""

    arguments: tuple[str, ...]
    ranks: str
    mode: str
    stages: str
    windows: int
    window_updates: int
    warm_up: int
    tolerance: float | None
    threads: int | None
    output: Path | None
    env_file: Path | None
    force: bool
    submit: bool
    wait: bool
    slots_per_node: int | None
    partition: str | None
    time: str | None
    cpu: bool
    simulate: str
    gpu: str
    network: str
    gpus_per_node: int | None
    measured: Path | None
    as_json: bool


class ScaleCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        given = ScaleOptions(**ctx.params)
        named = {name for name in ctx.params if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
        run(given, named)


_COUNT = click.IntRange(1, 1000)
command = ScaleCommand(
    "scale",
    short_help="How a run scales with ranks and stages: measured, or simulated.",
    help="Train a few updates of the run that SPEC describes on several numbers of ranks, and set them against each other: speedup, efficiency, device "
    "time, phases, memory, what limits. A table, and scale.json and scale.html in a folder; `ftlaunch scale FOLDER` goes on with one. "
    "With --simulate nothing is run. Status 6: the points did not train the same; else that of the first point that could not be measured.",
    params=[
        arguments("[SPEC|FOLDER] [KEY=VALUE]..."),
        click.Option(["--spec"], type=FILE, help="The spec; the same as SPEC."),
        click.Option(["--ranks"], default="", metavar="N,N...", help="Numbers of ranks. Default: 1, 2, 4, ... and all slots."),
        click.Option(["--mode"], type=click.Choice(["strong", "weak"]), default="strong", show_default=True, help="The update stays, or grows with the ranks."),
        click.Option(["--stages"], default="", metavar="S,S...", help="ZeRO stages, each with all numbers of ranks. Default: the spec's."),
        hosts_option(),
        zero_option("DeepSpeed ZeRO stage of the spec."),
        set_option(),
        *filter_options(),
        click.Option(["--windows"], type=_COUNT, default=3, show_default=True, help="Windows of updates; their median counts."),
        click.Option(["--window-updates"], type=_COUNT, default=3, show_default=True, help="Updates of each."),
        click.Option(["--warm-up"], type=click.IntRange(0, 1000), default=2, show_default=True, help="Updates before them that don't count."),
        click.Option(["--tolerance"], type=click.FloatRange(min=0), help="Largest relative distance of losses (strong). Default: 1e-5 in fp32, else by type."),
        click.Option(["--threads"], type=_COUNT, help="OMP_NUM_THREADS of each rank. Default on CPUs: cores over the most ranks of a host."),
        click.Option(["--output", "-o"], type=FOLDER, help="The test's folder, also an earlier one. Default: scalings/TIME-MODEL."),
        env_file_option("the ranks"),
        force_option(),
        click.Option(["--submit"], is_flag=True, help="Queue each point as a job of Slurm, by cluster.scheduler."),
        click.Option(["--wait"], is_flag=True, help="With jobs: wait for them."),
        click.Option(["--slots-per-node"], type=_COUNT, help="With --submit: ranks that a host has room for."),
        click.Option(["--partition", "-p"], help="With --submit: partition of the jobs."),
        click.Option(["--time"], metavar="TIME", help="With --submit: time limit of each job."),
        click.Option(["--cpu"], is_flag=True, help="With --submit: ranks run on CPUs."),
        click.Option(["--simulate"], default="", metavar="N,N...", help="Run nothing: say what these numbers of ranks would be, with the uncertainty."),
        click.Option(
            ["--gpu"], default="", metavar="NAME[:GiB]", help="With --simulate: the accelerator, as for plan. Default: hardware.accelerator, or this one."
        ),
        click.Option(["--network"], default="", metavar="CARDSxGBIT", help="With --simulate, between hosts: 8x400 (8 cards of 400 Gbit/s a host), 400GB/s."),
        click.Option(
            ["--gpus-per-node"], type=_COUNT, help="With --simulate: accelerators of a host. Default: the hostfile's, else 8; of CPUs, all ranks on one host."
        ),
        click.Option(["--measured"], type=FOLDER, help="With --simulate: measured speed to start from: scale.json, pilot.json, or a run folder."),
        click.Option(["--json", "as_json"], is_flag=True, help="With --simulate: print JSON."),
    ],
)

_OF_SIMULATION = ("gpu", "network", "gpus_per_node", "measured", "as_json")
_OF_JOBS = ("slots_per_node", "partition", "time", "cpu")
_OF_FOLDER = ("arguments", "submit", "wait", "force")
_OF_MEASURING = ("windows", "window_updates", "warm_up", "tolerance", "threads", "output", "env_file", "force", "submit", "wait", "ranks")


def run(given: ScaleOptions, named: set[str]) -> None:
    """Measures or simulates; `named` are the options on the command line. Raises the FtError of what went wrong."""
    from launcher.early_stops import early_stops
    from launcher.scaling.asked import require_given

    lists = {"ranks": given.ranks, "stages": given.stages, "simulate": given.simulate}
    require_given({name: text for name, text in lists.items() if name in named}, given.tolerance)
    if given.simulate:
        _refuse(named, (*_OF_MEASURING, *_OF_JOBS), "--simulate runs nothing (numbers of ranks stand behind it: --simulate 8,64)")
        _simulate(given)
        return
    _refuse(named, _OF_SIMULATION, "only with --simulate N,N...")
    with early_stops():
        folder = next((text for text in given.arguments if "=" not in text and isdir(text)), None)
        if folder is None:
            _refuse(named, () if given.submit else (*_OF_JOBS, "wait"), "only with --submit")
            _start(given)
            return
        others = {"sets"} if len(given.arguments) > 1 else set()
        wrong = (named | others) - set(_OF_FOLDER)
        _refuse(wrong, tuple(wrong), f"{folder} goes on as it was asked for; to change that, give its SPEC and -o {folder}")
        _go_on(given, Path(folder))


def _simulate(given: ScaleOptions) -> None:
    from launcher.scaling.asked import parse_grid
    from launcher.scaling.simulated import Simulated, simulation_text

    ranks, stages = parse_grid(given.simulate, given.stages, "--simulate")
    asked = Simulated(
        options=spec_options(given, done="simulated"),
        ranks=ranks,
        stages=stages,
        mode=given.mode,
        gpu=given.gpu,
        network=given.network,
        gpus_per_node=given.gpus_per_node,
        measured=given.measured,
    )
    click.echo(simulation_text(asked, as_json=given.as_json))


def _refuse(named: set[str], wrong: tuple[str, ...], why: str) -> None:
    """Raises UsageError when an option stands where it means nothing."""
    found = sorted(named & set(wrong))
    if found:
        shown = ", ".join({"sets": "KEY=VALUE", "as_json": "--json"}.get(name, f"--{name.replace('_', '-')}") for name in found)
        raise click.UsageError(f"{shown}: {why}")


def _start(given: ScaleOptions) -> None:
    """A new test, or more points in the folder of one."""
    from launcher.environment import read_env_file
    from launcher.run_folder import locked, shown
    from launcher.scaling.asked import parse_grid
    from launcher.scaling.request import write_request
    from launcher.scaling.start import Asked, lock_of, look_around, make_request, new_folder, open_sweep, with_earlier_points
    from launcher.scaling.sweep import recall

    ranks, stages = parse_grid(given.ranks, given.stages)
    asked = Asked(
        mode=given.mode,
        ranks=ranks,
        stages=stages,
        warm_up=given.warm_up,
        windows=given.windows,
        window_updates=given.window_updates,
        tolerance=given.tolerance,
        threads=given.threads,
        env_file=str(given.env_file.absolute()) if given.env_file is not None else "",
        force=given.force,
    )
    variables = read_env_file(given.env_file) if given.env_file is not None else {}
    subject = _subject(given, variables)
    machines = look_around(subject.resolved, (given.output or Path.cwd()).absolute(), variables) if subject.job is None else None
    request = make_request(asked, subject, machines)
    folder = new_folder(request, given.output)
    request = with_earlier_points(request, folder)
    with locked(lock_of(folder)):
        sweep = open_sweep(folder, request, machines, variables)
        write_request(folder, request)
        sweep.progress.line(f"scaling test: {shown(folder.path)}, {len(sweep.wanted)} point{'s' if len(sweep.wanted) > 1 else ''} of {request.updates} updates")
        recall(sweep)
        _measure(sweep, given)


def _subject(given: ScaleOptions, variables: dict[str, str]) -> Subject:
    """The run that the command line names."""
    import os

    from launcher.commands.launch import say
    from launcher.resolve import read_and_resolve
    from launcher.scaling.start import Subject
    from launcher.submission.request import Asked, resolve_runs

    options = spec_options(given, done="measured")
    if given.submit:
        asked = Asked(slots_per_node=given.slots_per_node, partition=given.partition, time=given.time)
        [job] = resolve_runs(options, asked, ())
        resolution = job.resolution
    else:
        job, resolution = None, read_and_resolve(options)
    say(f"spec: {resolution.origin}")
    for warning in resolution.warnings:
        say(f"warning: {warning}", err=True)
    return Subject(
        options=options,
        resolved=resolution.resolved,
        name=resolution.origin,
        text=resolution.spec_text,
        zero_config=resolution.zero_config,
        job=job,
        on_cpu=given.submit and (given.cpu or {**os.environ, **variables}.get("DS_ACCELERATOR") == "cpu"),
    )


def _go_on(given: ScaleOptions, path: Path) -> None:
    """A test whose folder is named: points that are left are measured, jobs collected."""
    from ftcore.spec.scale_result import ScaleDir
    from launcher.environment import read_env_file
    from launcher.run_folder import locked, shown
    from launcher.scaling.request import read_request
    from launcher.scaling.start import lock_of, look_around, open_sweep
    from launcher.scaling.sweep import recall

    folder = ScaleDir(path.absolute())
    request = read_request(folder)
    is_queued = request.scheduler is not None
    if given.submit and not is_queued:
        raise click.UsageError(f"{path} is measured from here, not by jobs: give its SPEC, --submit and another folder (-o)")
    variables = read_env_file(Path(request.env_file)) if request.env_file else {}
    with locked(lock_of(folder)):
        machines = look_around(request.resolved, folder.path, variables) if not is_queued else None
        sweep = open_sweep(folder, request, machines, variables)
        sweep.progress.line(f"scaling test: {shown(folder.path)}, {len(sweep.wanted)} point{'s' if len(sweep.wanted) > 1 else ''} of {request.updates} updates")
        recall(sweep, anew=not is_queued or given.submit)
        _measure(sweep, given)


def _measure(sweep: Sweep, given: ScaleOptions) -> None:
    """What is left, then the result. Raises the FtError of what went wrong."""
    from ftcore.spec.scale_result import WAITING
    from launcher.commands.launch import say
    from launcher.run_folder import shown
    from launcher.scaling.finish import require_good, show_result
    from launcher.scaling.jobs import collect_jobs, submit_points, wait_for_jobs
    from launcher.scaling.sweep import measure_here

    left = []
    if sweep.request.scheduler is None:
        measure_here(sweep)
    else:
        if given.submit:
            submit_points(sweep)
        if given.wait:
            wait_for_jobs(sweep)
        else:
            left = collect_jobs(sweep)
    result = sweep.result
    show_result(sweep.folder, result, sweep.progress)
    if left:
        say(f"{len(left)} job{'s' if len(left) > 1 else ''} left; ftlaunch scale {shown(sweep.folder.path)} collects them, with --wait it waits for them")
    never = [point.name for point in result.points if point.state == WAITING]
    if never:
        say(f"never queued: {', '.join(never)}; ftlaunch scale {shown(sweep.folder.path)} --submit queues them")
    require_good(result)
