"""A run that goes on in another way: other hosts, another ZeRO stage, or values that don't change what is trained."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ftcore.spec.document import Document, KeyPath, dotted, leaves
from ftcore.spec.errors import ClusterError, Problem, SpecError
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.sections import (
    BatchSection,
    CheckpointSection,
    EvaluationSection,
    HardwareSection,
    LoggingSection,
    ProfilingSection,
    Spec,
    TrainSection,
    ZeroSection,
)
from launcher.ds_json.rules import check_groups
from launcher.filters import select
from launcher.hostfile import read_hostfile
from launcher.references import absolute
from launcher.resolve import absolute_files, derived_coalescing
from launcher.spec_source import Draft, Options, Place, put_over
from launcher.validate import build_spec, find_problems

FREE_KEYS = (
    *("zero.stage", "zero.coalesce_grad_reduction", "batch.micro_batch_tokens", "train.gradient_checkpointing"),
    *("checkpoint.save_steps", "checkpoint.save_total_limit", "checkpoint.save_async", "evaluation.eval_steps"),
    *("evaluation.early_stopping_patience", "evaluation.early_stopping_threshold"),
    # A stream that stopped at a bad row goes on without it; the rows that are no mistake keep their places.
    *("data.on_bad_row", "data.prefetch_updates", "data.num_proc"),
)
"""Keys that may change on a resume: neither the objective nor the order of the samples depends on them."""
FREE_SECTIONS = ("cluster.", "logging.", "profiling.", "hardware.")
"""Sections of which every key may."""
DATA = "data."
"""Begins the keys that may with --allow-data-change alone."""
COALESCING = "zero.coalesce_grad_reduction"
_DERIVED = (COALESCING, "cluster.hosts", "cluster.slots")
"""Keys that follow from others where nobody gives them."""

_FIX = "resume with another --zero or other hosts, or start a new run (-o)"
"""What a spec can be mended by is no way out for a run that was started with it."""
_GONE = "put it back where it was, or start a new run (-o)"
_MENDED_THERE = ("--set", "--hosts", "--launcher", "--master-addr", "--master-port", "--interface", "--max-restarts", "--elastic")
"""Options whose mistakes are mended as they say themselves."""
_REASONS = {
    "train.max_steps": "the learning rate of every update depends on the length of the run",
    "train.num_train_epochs": "the learning rate of every update depends on the length of the run",
    "schedule": "the learning rate of every update depends on it",
    "train.seed": "the order of the samples depends on it, and the position in it would mean other samples",
    "data": "the position in the data would mean other samples",
    "batch": "it decides which samples are an update",
    "model": "the checkpoints belong to the model that the run was started with",
    "method": "the checkpoints hold the parameters that the run was started with",
    "optimizer": "the checkpoints hold this optimizer's state",
    "zero": "only zero.stage may change",
}
"""Key or section -> why it stays as it is."""


Section = TypeVar("Section", BatchSection, CheckpointSection, EvaluationSection, HardwareSection, LoggingSection, ProfilingSection, TrainSection, ZeroSection)


@dataclass(frozen=True, slots=True)
class _Launch:
    hosts: tuple[Host, ...]
    attempt: int


def resolve_again(resolved: ResolvedSpec, options: Options, attempt: int, *, other_data: bool = False) -> ResolvedSpec:
    """The run's spec with the options of a resume in it, which will be its launch number `attempt`; `resolved` itself when they change nothing.

    `other_data`: keys of `data` may change too, as --allow-data-change says.
    Raises SpecError with every problem of the new combination, or ClusterError when only the hostfile is wrong.
    """
    free = tuple(text for text in options.sets if _is_free(_key_of(text), other_data=other_data))
    draft, chosen = _draft(resolved, replace(options, sets=free))
    refused = [_refused(_key_of(text)) for text in options.sets if text not in free]
    hosts, host_problems = _hosts(resolved, draft, chosen, options)
    world_size = sum(host.slots for host in hosts) or None
    # A file that the profiler wrote in an earlier attempt is its own.
    found = [*find_problems(draft, world_size), *check_groups(draft, hosts)]
    found = [problem for problem in found if problem.where != "zero.overrides.flops_profiler.output_file"]
    if not any(key.startswith("profiling.") for key in chosen):
        # A run that goes on with fewer hosts, by itself too, must not end for a rank that nothing is recorded of now.
        found = [problem for problem in found if problem.where != "profiling.ranks"]
    problems = [*refused, *map(_with_a_way_out, found)]
    if problems:
        raise SpecError([*problems, *host_problems])
    if host_problems:
        only_hostfile = all(problem.where not in ("--include", "--exclude") for problem in host_problems)
        raise (ClusterError if only_hostfile else SpecError)(host_problems)
    return _changed(resolved, draft, chosen, _Launch(hosts, attempt))


def changes(before: ResolvedSpec, after: ResolvedSpec) -> dict[str, tuple[Any, Any]]:
    """Key path -> (value before, value after), of all that differ; `world_size` is one of them."""
    old, new = _values(before), _values(after)
    return {key: (old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)}


def _values(resolved: ResolvedSpec) -> dict[str, Any]:
    values = {dotted(path): value for path, value in leaves(_plain(resolved))}
    return {**values, "hosts": ", ".join(_described(host) for host in resolved.hosts), "world_size": resolved.world_size}


def _described(host: Host) -> str:
    slots = ",".join(map(str, host.slot_ids)) or host.slots
    settings = [f"port={host.port}"] * bool(host.port) + [f"interface={host.interface}"] * bool(host.interface)
    variables = [f"env.{name}={value}" for name, value in host.environment.items()]
    return " ".join([f"{host.user}@{host.name}:{slots}" if host.user else f"{host.name}:{slots}", *settings, *variables])


def _plain(resolved: ResolvedSpec) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(resolved.spec)))
    return plain


def _draft(resolved: ResolvedSpec, options: Options) -> tuple[Draft, frozenset[str]]:
    """What the user gave for the run, with the options of the resume over it; and the keys that those set."""
    data: dict[str, Any] = {}
    lines: dict[KeyPath, int] = {}
    for path, value in leaves(_plain(resolved)):
        source = resolved.sources.get(dotted(path), "default")
        if source in ("default", "derived") or value is None:
            continue
        home = data
        for depth, part in enumerate(path[:-1], start=1):
            home = home.setdefault(part, {})
            lines[path[:depth]] = 0
        home[path[-1]], lines[path] = value, 0
    draft = put_over(Document(data=data, lines=lines, problems=()), options, label="resolved.json", text="", origin="resolved.json")
    places = {path: place if place.line is None else Place(resolved.sources.get(dotted(path), "resolved.json")) for path, place in draft.places.items()}
    return replace(draft, places=places, other_stage=True), frozenset(dotted(path) for path, place in draft.places.items() if place.line is None)


def _key_of(text: str) -> str:
    return ".".join(part.strip() for part in text.partition("=")[0].split("."))


def _is_free(key: str, *, other_data: bool) -> bool:
    # What is no KEY=VALUE at all is refused where all options are read.
    return "." not in key or key in FREE_KEYS or key.startswith(FREE_SECTIONS) or (other_data and key.startswith(DATA))


def _with_a_way_out(problem: Problem) -> Problem:
    if problem.file in _MENDED_THERE:
        return problem
    return replace(problem, fix=_GONE if "no such file" in problem.what else _FIX)


def _refused(key: str) -> Problem:
    """Why a key must stay as it is."""
    reason = _REASONS.get(key) or _REASONS.get(key.partition(".")[0]) or "a run goes on as it was started"
    fix = f"start a new run (-o) for that; on a resume these may change: {', '.join(FREE_KEYS)}, cluster.*, logging.*, profiling.*, hardware.*"
    if key.startswith(DATA):
        fix = "start a new run (-o) for that, or add --allow-data-change, whose help says what becomes of the order of the samples"
    return Problem(what=f"{key} can't change when a run goes on: {reason}", where=key, fix=fix, file="--set")


def _hosts(resolved: ResolvedSpec, draft: Draft, chosen: frozenset[str], options: Options) -> tuple[tuple[Host, ...], list[Problem]]:
    """The hosts that the options name, else the run's own, through the filter; and what is wrong with them."""
    section = draft.data.get("cluster", {})
    named, slots = section.get("hosts", ""), section.get("slots")
    names_hosts = "cluster.hosts" in chosen and isinstance(named, str) and named and "\0" not in named
    names_slots = "cluster.slots" in chosen and type(slots) is int and slots > 0
    try:
        if names_hosts:
            hosts = read_hostfile(Path(absolute(named)))
        elif names_slots:
            hosts = (Host(name="localhost", slots=slots),)
        else:
            hosts = resolved.hosts
        return select(hosts, options.include, options.exclude), []
    except (ClusterError, SpecError) as error:
        return (), list(error.problems)


def _changed(resolved: ResolvedSpec, draft: Draft, chosen: frozenset[str], launch: _Launch) -> ResolvedSpec:
    given, spec = build_spec(draft.data), resolved.spec
    named = absolute(given.cluster.hosts) if given.cluster.hosts else ""
    after = replace(
        spec,
        zero=_zero(spec, draft, chosen, given.zero),
        # What nobody gave is a default, now as then.
        cluster=replace(given.cluster, hosts=named, slots=None if named else sum(host.slots for host in launch.hosts)),
        data=absolute_files(given.data) if any(key.startswith(DATA) for key in chosen) else spec.data,
        batch=_with_chosen(spec.batch, given.batch, "batch", chosen),
        train=_with_chosen(spec.train, given.train, "train", chosen),
        evaluation=_with_chosen(spec.evaluation, given.evaluation, "evaluation", chosen),
        checkpoint=_with_chosen(spec.checkpoint, given.checkpoint, "checkpoint", chosen),
        logging=_with_chosen(spec.logging, given.logging, "logging", chosen),
        profiling=_with_chosen(spec.profiling, given.profiling, "profiling", chosen),
        hardware=_with_chosen(spec.hardware, given.hardware, "hardware", chosen),
    )
    new = replace(resolved, spec=after, hosts=launch.hosts)
    differing = changes(resolved, new)
    return replace(new, sources=_sources(resolved, draft, chosen, differing, launch.attempt)) if differing else resolved


def _with_chosen(section: Section, given: Section, name: str, chosen: frozenset[str]) -> Section:
    """The section with the fields of `given` that options of this resume set."""
    fields = [field.name for field in dataclasses.fields(given) if f"{name}.{field.name}" in chosen]
    return replace(section, **{field: getattr(given, field) for field in fields})


def _zero(spec: Spec, draft: Draft, chosen: frozenset[str], given: ZeroSection) -> ZeroSection:
    zero = _with_chosen(spec.zero, given, "zero", chosen)
    # Derived before, or given before and taken back now (null): it follows from the stage.
    return zero if draft.given(COALESCING) else replace(zero, coalesce_grad_reduction=derived_coalescing(zero, spec.method))


def _sources(resolved: ResolvedSpec, draft: Draft, chosen: frozenset[str], differing: dict[str, tuple[Any, Any]], attempt: int) -> dict[str, str]:
    sources = {key: source for key, source in resolved.sources.items() if key not in differing}
    for key, (_, value) in differing.items():
        if value is not None and key not in ("hosts", "world_size"):
            not_given = "derived" if key in _DERIVED else "default"
            sources[key] = f"{draft.place(tuple(key.split('.')))} (resume, attempt {attempt})" if key in chosen else not_given
    return sources
