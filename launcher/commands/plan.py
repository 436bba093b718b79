"""`ftlaunch plan [SPEC]`: what a run takes and whether it fits, how long it takes and what it costs, before anything is started."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launcher.verb_options import FILE, SpecGiven, arguments, filter_options, hosts_option, set_option, spec_options, zero_option

if TYPE_CHECKING:
    from ftcore.spec.resolved import ResolvedSpec
    from launcher.memory.exact_shape import Exact
    from launcher.memory.plan import Plan
    from launcher.spec_source import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions(SpecGiven):
    """What the command line says."""

    arguments: tuple[str, ...]
    gpu: str
    recommend: bool
    exact: bool
    as_json: bool


class PlanCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        run(PlanOptions(**ctx.params))


command = PlanCommand(
    "plan",
    short_help="Memory, time and cost of a run; starts nothing.",
    help="What the run that SPEC describes takes, item by item; whether it fits; how long it takes and what it costs. Without SPEC: the one that a bare "
    "ftlaunch would use. KEY=VALUE arguments override values of the spec. Status 7 when it can't fit.",
    params=[
        arguments("[SPEC] [KEY=VALUE]..."),
        click.Option(["--gpu"], default="", metavar="NAME[:GiB]", help="Accelerator to plan for: h100-80, a100-40, 4090, h200, cpu, or NAME:GiB."),
        click.Option(["--recommend"], is_flag=True, help="List what else fits: stage, offload, recomputed layers, quantisation, micro-steps; best first."),
        click.Option(["--exact"], is_flag=True, help="Build the model and run a micro-step without memory, in a process of its own: for any architecture."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object."),
        click.Option(["--spec"], type=FILE, help="The spec, as for launch; the same as SPEC."),
        hosts_option(),
        zero_option(),
        set_option(),
        *filter_options(),
    ],
)


def run(given: PlanOptions) -> None:
    """Prints the plan. Raises the FtError of a wrong spec; exits with status 7 when the run can't fit, and with --recommend when nothing else fits either."""
    from ftcore.spec.errors import DoesNotFitError
    from launcher.memory.capacity import capacity_of
    from launcher.memory.config_file import find_config
    from launcher.memory.plan import make_plan
    from launcher.memory.plan_facts import plan_facts
    from launcher.memory.shape import read_shape
    from launcher.memory.table import render_plan
    from launcher.resolve import read_and_resolve
    from launcher.run_folder import RUNS

    options = spec_options(given, done="planned")
    resolution = read_and_resolve(options)
    resolved = resolution.resolved
    # With --gpu the plan is for another machine, and this one's disk says nothing.
    capacity = capacity_of(resolved, gpu=given.gpu, folder=None if given.gpu else Path.cwd() / RUNS)
    exact = _exact(resolved, on_cpu=capacity.is_shared) if given.exact else None
    shape = exact.shape if exact is not None else read_shape(find_config(resolved.spec.model))
    plan = make_plan(resolved, resolution.origin, shape, capacity, exact)
    facts: dict[str, Any] = {**plan_facts(plan), "warnings": list(resolution.warnings)} if given.as_json else {}
    text = render_plan(plan) if not (given.as_json or given.recommend) else ""
    if given.recommend:
        recommended, more = _recommended(plan, options)
        facts["recommendation"] = more
        text = text or recommended
    click.echo(json.dumps(facts, indent=2, ensure_ascii=False) if given.as_json else text)
    for warning in () if given.as_json else resolution.warnings:
        click.echo(f"warning: {warning}", err=True)
    if plan.fits is False and not facts.get("recommendation", {}).get("options"):
        raise click.exceptions.Exit(DoesNotFitError.exit_status)


def _exact(resolved: ResolvedSpec, *, on_cpu: bool) -> Exact:
    """The model built and run without memory, in a process of its own; says so on stderr, for it takes seconds."""
    from launcher.memory.exact_shape import exact_model

    spec = resolved.spec
    click.echo(f"tracing {spec.model.model_name_or_path} without memory: a micro-step of {spec.batch.micro_batch_tokens:,} tokens ...", err=True)
    return exact_model(resolved, on_cpu=on_cpu)


def _recommended(plan: Plan, options: Options) -> tuple[str, dict[str, Any]]:
    """The recommendation as text and as JSON-ready values."""
    import dataclasses
    from collections.abc import Sequence

    from ftcore.spec.errors import Problem
    from launcher.memory.recommend import recommend
    from launcher.memory.recommend_text import recommendation_facts, render_recommendation
    from launcher.resolve import check_spec

    def check(changes: dict[str, str]) -> Sequence[Problem]:
        sets = tuple(each for each in options.sets if each.partition("=")[0] not in changes)
        zero = None if "zero.stage" in changes else options.zero_stage
        return check_spec(dataclasses.replace(options, zero_stage=zero, sets=(*sets, *(f"{key}={value}" for key, value in changes.items()))))

    found = recommend(plan.resolved, plan.shape, plan.capacity, check=check)
    return render_recommendation(found) + "\n", recommendation_facts(found)
