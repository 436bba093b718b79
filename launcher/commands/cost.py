"""`ftlaunch cost SPEC`: plans that meet a deadline, with their prices. `ftlaunch cost RUN`: what a run has cost, and what is still to come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os.path import isdir
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.verb_options import FILE, FOLDER, SpecGiven, arguments, filter_options, hosts_option, set_option, spec_options, zero_option

if TYPE_CHECKING:
    from launcher.costs.planning import Question
    from launcher.resolve import Resolution


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions(SpecGiven):
    """What the command line says."""

    arguments: tuple[str, ...]
    deadline: str | None
    ranks: str | None
    gpu: str
    network: str
    gpus_per_node: int | None
    price: float | None
    spot_price: float | None
    interruptions_per_day: float | None
    currency: str | None
    measured: tuple[Path, ...]
    notice: bool
    goes_on: bool
    start_time: str | None
    save_time: str | None
    wait_time: str | None
    gain: float | None
    everything: bool
    as_json: bool


class CostCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        named = {param.name: param.opts[0] for param in self.params if ctx.get_parameter_source(param.name) is click.core.ParameterSource.COMMANDLINE}
        run(CostOptions(**ctx.params), named)


_DURATION = "24h, 90m, 2:30:00"

command = CostCommand(
    "cost",
    short_help="The cheapest plan that meets a deadline; what a run has cost.",
    help="With a SPEC: the plans to run it, by ranks, on demand and on spot hosts, with their time and price; the cheapest that meets the deadline first. "
    "With a RUN folder: what it has cost so far, what the rest will cost, and where its evaluation loss is going. Starts nothing. "
    "Status 7 when no plan meets the deadline, or nothing fits.",
    params=[
        arguments("[SPEC|RUN] [KEY=VALUE]..."),
        click.Option(["--deadline"], metavar="DURATION", help=f"When it has to be done: {_DURATION}."),
        click.Option(["--ranks"], metavar="N,N,...", help="Numbers of ranks to weigh. Default: the spec's, those measured, and 1 to 64 accelerators."),
        click.Option(["--gpu"], default="", metavar="NAME[:GiB]", help="Accelerator to plan for, as for plan."),
        click.Option(["--network"], default="", metavar="CARDSxGBIT", help="Between hosts: 8x400 (8 cards of 400 Gbit/s a host), 400GB/s."),
        click.Option(["--gpus-per-node"], type=click.IntRange(1, 100_000), help="Accelerators of a host. Default: 8; of CPUs, all ranks on one host."),
        click.Option(["--price"], type=float, help="Price of an accelerator for an hour. Default: hardware.price_per_hour."),
        click.Option(["--spot-price"], type=float, help="The same of a spot host's. Default: hardware.spot_price_per_hour."),
        click.Option(["--interruptions-per-day"], type=float, help="How often a spot host is taken away. Default: hardware.interruptions_per_day."),
        click.Option(["--currency"], help="Unit of the prices. Default: hardware.currency."),
        click.Option(["--measured"], type=FOLDER, multiple=True, help="Measured speeds: scale.json, pilot.json, or a run folder; may be given again."),
        click.Option(["--notice"], is_flag=True, help="Interruptions come with notice enough to save (Slurm, SIGTERM): nothing is lost."),
        click.Option(["--elastic", "goes_on"], is_flag=True, help="A lost host does not stop the others: as launch --elastic."),
        click.Option(["--start-time"], metavar="DURATION", help="From the launch to the first update."),
        click.Option(["--save-time"], metavar="DURATION", help="From a save's begin to where it counts."),
        click.Option(["--wait-time"], metavar="DURATION", help="Until another spot host stands in for one that was taken away."),
        click.Option(["--gain"], type=float, help="Of a RUN: what an evaluation must bring. Default: evaluation.early_stopping_threshold, else 0.1 %."),
        click.Option(["--all", "everything"], is_flag=True, help="Show every ZeRO stage, not only the best for each number of ranks."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object."),
        click.Option(["--spec"], type=FILE, help="The spec, as for launch; the same as SPEC."),
        hosts_option(),
        zero_option(),
        set_option(),
        *filter_options(),
    ],
)

_OF_RUN = ("arguments", "price", "currency", "gain", "as_json")


def run(given: CostOptions, named: Mapping[str, str]) -> None:
    """Prints the plans, or the run's cost; `named`: name -> option, of those on the command line.

    Raises the FtError of what is wrong; exits with status 7 when no plan meets the deadline.
    """
    folders = [Path(text) for text in given.arguments if "=" not in text and isdir(text)]
    if not folders:
        _plans(given)
        return
    if len(folders) > 1 or len(given.arguments) > 1 or given.spec is not None:
        raise click.UsageError("one RUN is looked at at a time, with no spec and no KEY=VALUE beside it")
    wrong = [option for name, option in named.items() if name not in _OF_RUN]
    if wrong:
        raise click.UsageError(f"of a RUN it is told what it costs as it is: {', '.join(wrong)} belong{'s' if len(wrong) == 1 else ''} to a SPEC")
    _of_run(folders[0], given)


def _of_run(folder: Path, given: CostOptions) -> None:
    import json
    import time

    from launcher.costs.run_report import report_facts, report_run
    from launcher.costs.run_text import render_report

    report = report_run(folder, gain=given.gain, price=given.price, currency=given.currency, now=time.time())
    click.echo(json.dumps(report_facts(report), indent=2, ensure_ascii=False) if given.as_json else render_report(report))


def _plans(given: CostOptions) -> None:
    import json

    from ftcore.spec.errors import DoesNotFitError
    from launcher.costs.copy_line import Asked
    from launcher.costs.plan_facts import planning_facts
    from launcher.costs.plan_text import render_planning
    from launcher.costs.planner import NO
    from launcher.costs.planning import make_planning
    from launcher.resolve import read_and_resolve

    if given.gain is not None:
        raise click.UsageError("--gain is of a RUN's evaluations")
    options = spec_options(given, done="planned")
    resolution = read_and_resolve(options)
    question = _question(given, resolution)
    planning = make_planning(question)
    asked = Asked(
        spec=str(options.spec_path or ""),
        zero=given.zero,
        hosts=str(given.hosts or ""),
        include=given.include,
        exclude=given.exclude,
        is_local=not resolution.resolved.spec.cluster.hosts,
        sets=options.sets,
        own_hosts=tuple(host.slots for host in resolution.resolved.hosts),
        save_steps=resolution.resolved.spec.checkpoint.save_steps,
        gpus_per_node=planning.gpus_per_node,
        has_notice=given.notice,
        elastic=planning.terms.elastic,
    )
    if given.as_json:
        click.echo(json.dumps({**planning_facts(planning, asked), "warnings": list(resolution.warnings)}, indent=2, ensure_ascii=False))
    else:
        click.echo(render_planning(planning, asked, everything=given.everything))
        for warning in (*planning.terms.prices.missing, *resolution.warnings):
            click.echo(f"warning: {warning}", err=True)
    if planning.best.meets == NO:
        raise click.exceptions.Exit(DoesNotFitError.exit_status)


def _question(given: CostOptions, resolution: Resolution) -> Question:
    """Raises SpecError for durations, numbers of ranks or a model that can't be read."""
    from launcher.costs.overheads import GivenTimes
    from launcher.costs.planning import Question
    from launcher.costs.prices import Given
    from launcher.memory.config_file import find_config
    from launcher.memory.shape import read_shape

    seconds, ranks = _numbers(given)
    return Question(
        resolved=resolution.resolved,
        origin=resolution.origin,
        shape=read_shape(find_config(resolution.resolved.spec.model)),
        given=Given(price=given.price, spot_price=given.spot_price, interruptions_per_day=given.interruptions_per_day, currency=given.currency),
        times=GivenTimes(start_s=seconds["--start-time"], save_s=seconds["--save-time"], wait_s=seconds["--wait-time"]),
        ranks=ranks,
        gpu=given.gpu,
        network=given.network,
        gpus_per_node=given.gpus_per_node,
        measured=given.measured,
        deadline_s=seconds["--deadline"],
        has_notice=given.notice,
        elastic=given.goes_on,
    )


def _numbers(given: CostOptions) -> tuple[dict[str, float | None], tuple[int, ...]]:
    """(seconds of each option that is a duration, ranks). Raises SpecError with everything that is none."""
    from ftcore.spec.errors import Problem, SpecError
    from launcher.costs.candidates import parse_ranks
    from launcher.costs.prices import seconds_of

    times = {"--start-time": given.start_time, "--save-time": given.save_time, "--wait-time": given.wait_time, "--deadline": given.deadline}
    seconds: dict[str, float | None] = dict.fromkeys(times)
    problems: list[Problem] = []
    ranks: tuple[int, ...] = ()
    for name, text in times.items():
        try:
            seconds[name] = seconds_of(text, name) if text is not None else None
        except SpecError as error:
            problems += error.problems
    try:
        ranks = parse_ranks(given.ranks) if given.ranks is not None else ()
    except SpecError as error:
        problems += error.problems
    if problems:
        raise SpecError(problems)
    return seconds, ranks
