"""From the options of `ftlaunch submit` to resolved runs: everything is checked before anything is made or submitted."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ftcore.spec.cluster import SchedulerSection
from ftcore.spec.errors import FtError, Problem, SpecError
from ftcore.spec.resolved import Host, ResolvedSpec
from launcher.hostfile import render_hostfile
from launcher.resolve import Options, Resolution, read_and_resolve
from launcher.resuming import resolve_again
from launcher.schema_check import SPEC_SCHEMA, check_schema, load_schema
from launcher.spec_source import read_draft
from launcher.submission.elements import Element, expand_array
from launcher.submission.scheduler_rules import SECTION, check_submission
from launcher.validate import partial_spec

PLACEHOLDER = "slurm-node-"
"""Begins the name of a host that a job has not been given yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line says about the job; None and empty: as the spec says."""

    nodes: int | None = None
    slots_per_node: int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    sbatch_args: tuple[str, ...] = ()

    def given(self) -> dict[str, Any]:
        """Key of cluster.scheduler -> value, of those that were given."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None and value != ()}

    def sets(self) -> tuple[str, ...]:
        """The same as --set takes it; in quotes, so that text stays text."""
        return tuple(f"{SECTION}.{name}={json.dumps(value, ensure_ascii=False)}" for name, value in self.given().items())

    def named(self, problem: Problem) -> Problem:
        """The problem with the option that set the value."""
        section, _, name = problem.where.rpartition(".")
        if section != SECTION or name not in self.given():
            return problem
        return replace(problem, file="--sbatch-arg" if name == "sbatch_args" else f"--{name.replace('_', '-')}", line=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run that is ready to be submitted."""

    element: Element
    resolution: Resolution
    scheduler: SchedulerSection
    """With nodes and slots_per_node."""


def resolve_runs(options: Options, asked: Asked, arrays: tuple[str, ...]) -> tuple[Run, ...]:
    """Every run of the submission. Raises SpecError with every mistake of all of them, or another FtError when only that is wrong."""
    runs, failures = [], []
    for element in expand_array(arrays):
        try:
            runs.append(_resolve(replace(options, sets=(*options.sets, *asked.sets(), *element.sets)), element))
        except FtError as error:
            failures.append(error)
    if failures:
        kind = SpecError if any(isinstance(error, SpecError) for error in failures) else type(failures[0])
        raise kind(dict.fromkeys(asked.named(problem) for error in failures for problem in error.problems))
    return tuple(runs)


def scheduler_again(resolved: ResolvedSpec, earlier: SchedulerSection, asked: Asked, attempt: int) -> SchedulerSection:
    """What an earlier submission of the run asked for, with the options over it. Raises SpecError with every mistake in them."""
    before = replace(resolved, spec=replace(resolved.spec, cluster=replace(resolved.spec.cluster, scheduler=earlier)))
    try:
        after = resolve_again(before, Options(sets=asked.sets()), attempt) if asked.given() else before
    except FtError as error:
        raise type(error)([asked.named(problem) for problem in error.problems]) from error
    return _complete(after.spec.cluster.scheduler, max(host.slots for host in resolved.hosts), len(resolved.hosts))


def allocation(scheduler: SchedulerSection) -> tuple[Host, ...]:
    """Hosts that stand for those of a job that has none yet."""
    return tuple(Host(name=f"{PLACEHOLDER}{number}", slots=scheduler.slots_per_node or 1) for number in range(scheduler.nodes or 1))


def is_placeholder(hosts: tuple[Host, ...]) -> bool:
    """Whether the hosts are those of `allocation`: no job has begun yet."""
    return any(host.name.startswith(PLACEHOLDER) for host in hosts)


def settled(run: Run, hosts_file: Path) -> ResolvedSpec:
    """The resolved spec of a submitted run: its hostfile is the one that the job writes, and its scheduler section says what was asked for."""
    resolved = run.resolution.resolved
    cluster = replace(resolved.spec.cluster, hosts=str(hosts_file), scheduler=run.scheduler)
    sources = {**resolved.sources, "cluster.hosts": "ftlaunch submit"}
    for name in ("nodes", "slots_per_node"):
        sources.setdefault(f"{SECTION}.{name}", "derived")
    return replace(resolved, spec=replace(resolved.spec, cluster=cluster), sources=sources)


def _resolve(options: Options, element: Element) -> Run:
    draft = read_draft(options)
    wrong = [item.path for item in check_schema(draft.data, load_schema(SPEC_SCHEMA), lambda path, key, schema: "")] if draft.readable else []
    cluster = partial_spec(draft.data if draft.readable else {}, wrong).cluster
    problems: tuple[Problem, ...] = ()
    scheduler = replace(cluster.scheduler, nodes=1, slots_per_node=1)
    try:
        scheduler = _complete(cluster.scheduler, cluster.slots, 1)
    except SpecError as error:
        # The rest of the spec is checked all the same, on hosts that don't matter.
        problems = tuple(draft.located(problem, tuple(problem.where.split("."))) for problem in error.problems)
    with tempfile.NamedTemporaryFile("w", prefix="ftlaunch-hosts-", encoding="utf-8") as hostfile:
        hostfile.write(render_hostfile(allocation(scheduler)))
        hostfile.flush()
        try:
            resolution = read_and_resolve(replace(options, hosts=hostfile.name))
        except FtError as error:
            raise type(error)([*error.problems, *(problems if draft.readable else ())]) from error
    if problems:
        raise SpecError(problems)
    return Run(element=element, resolution=resolution, scheduler=scheduler)


def _complete(section: SchedulerSection, slots: int | None, nodes: int) -> SchedulerSection:
    """The section with no number left open. Raises SpecError with what a submission can't do without."""
    complete = replace(section, nodes=section.nodes or nodes, slots_per_node=section.slots_per_node or slots)
    problems = check_submission(complete)
    if problems:
        raise SpecError(problems)
    return complete
