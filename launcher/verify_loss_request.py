"""From a spec to what `ftlaunch verify-loss` trains: the ground that the rules leave, the request, and each split's resolved spec."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ftcore.spec.errors import SpecError
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.sections import EvaluationSection, LoggingSection, ProfilingSection, Spec
from ftcore.spec.verification import Split, VerificationRequest
from launcher.ds_json.importing import import_ds_json
from launcher.resolve import Options, in_other_stage
from launcher.spec_source import read_draft
from launcher.validate import find_problems
from launcher.verify_loss_splits import STAGES, Ground, choose_splits, plan_legs

COALESCING = "coalesce_grad_reduction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What is to be verified, and how thoroughly."""

    options: Options
    """The spec, and what the command line changes in it."""
    resolved: ResolvedSpec
    """What they come to."""
    updates: int
    scope: str
    """quick, default or all."""
    ranks: tuple[int, ...] = ()
    """World sizes; empty: 1, 2 and all slots."""


def make_request(check: Check) -> VerificationRequest:
    """The splits, the order they run in, and what is left out. Raises SpecError when there are no ranks that the rules allow."""
    spec = check.resolved.spec
    chosen = choose_splits(find_ground(check), check.scope)
    return VerificationRequest(
        updates=check.updates,
        precision=spec.train.precision,
        optimizer=spec.optimizer.type,
        splits=chosen.splits,
        legs=plan_legs(chosen.splits, check.updates),
        left_out=chosen.left_out,
        notes=tuple(_notes(spec)),
    )


def find_ground(check: Check) -> Ground:
    """What the rules leave of ranks and stages."""
    spec, slots = check.resolved.spec, check.resolved.world_size
    too_many = [size for size in check.ranks if size > slots]
    if too_many:
        fix = f"give at most {slots}, or more slots (--hosts, cluster.slots)"
        raise SpecError(f"{', '.join(map(str, too_many))} ranks don't fit {slots} slots", where="--ranks", fix=fix)
    sizes = sorted(set(check.ranks) or {1, min(2, slots), slots})
    refused = refused_splits(check.options, spec.zero.stage, sizes)
    usable = tuple(size for size in sizes if any((size, stage) not in refused for stage in STAGES))
    if not usable:
        reasons = "; ".join(dict.fromkeys(refused.values()))
        raise SpecError(f"no stage is allowed on {', '.join(map(str, sizes))} ranks: {reasons}", where="--ranks", fix=f"give {slots} or leave --ranks out")
    return Ground(
        world_sizes=usable,
        stage=spec.zero.stage,
        budget=spec.batch.micro_batch_tokens,
        smallest_budget=spec.data.max_length,
        layout=spec.batch.layout,
        refused=refused,
    )


def refused_splits(options: Options, own: int, sizes: Sequence[int]) -> dict[tuple[int, int], str]:
    """(ranks, stage) -> why the rules for specs refuse it; `own` is the spec's stage."""
    draft = import_ds_json(read_draft(options), None).draft
    refused: dict[tuple[int, int], str] = {}
    for stage in STAGES:
        data, places = copy.deepcopy(draft.data), draft.places
        zero = data.setdefault("zero", {})
        zero["stage"] = stage
        data.pop("profiling", None)
        if stage != own and zero.pop(COALESCING, None) is not None:
            # Given for the spec's own stage: for another one it follows from that.
            places = {path: place for path, place in places.items() if path != ("zero", COALESCING)}
        for size in sizes:
            problems = find_problems(replace(draft, data=data, places=places, other_stage=stage != own), size)
            if problems:
                refused[size, stage] = problems[0].what
    return refused


def _notes(spec: Spec) -> list[str]:
    schedule = "the learning rate has no warm-up, so that every update moves the parameters" if spec.schedule.warmup_ratio or spec.schedule.warmup_steps else ""
    dropout = f"dropout is 0 (method.lora_dropout is {spec.method.lora_dropout:g}): losses could not agree with it" if spec.method.lora_dropout else ""
    return [note for note in (schedule, dropout) if note]


def resolve_split(resolved: ResolvedSpec, split: Split, updates: int, *, goes_on: bool = False) -> ResolvedSpec:
    """The spec of a split's run; with `goes_on`, of its second half."""
    spec = _shortened(resolved.spec, updates)
    size, stage = (split.then_world_size, split.then_zero_stage) if goes_on else (split.world_size, split.zero_stage)
    batch = replace(spec.batch, micro_batch_tokens=split.micro_batch_tokens, layout=split.layout)
    cluster = replace(spec.cluster, slots=size if spec.cluster.slots is not None else None)
    return replace(resolved, spec=replace(spec, zero=in_other_stage(spec, stage), batch=batch, cluster=cluster), hosts=first_slots(resolved.hosts, size))


def first_slots(hosts: tuple[Host, ...], count: int) -> tuple[Host, ...]:
    """The first `count` slots of the hosts, in rank order."""
    taken: list[Host] = []
    for host in hosts:
        slots = min(host.slots, count - sum(each.slots for each in taken))
        if slots:
            taken.append(replace(host, slots=slots, slot_ids=host.slot_ids[:slots]))
    return tuple(taken)


def _shortened(spec: Spec, updates: int) -> Spec:
    """The same updates in the same order, but few, without evaluation and dropout, and everything written down."""
    return replace(
        spec,
        data=replace(spec.data, eval=None, eval_sets={}),
        method=replace(spec.method, lora_dropout=0.0),
        # A decay of as many updates as the whole run's would not fit, or leave no learning rate; its share does.
        schedule=replace(spec.schedule, warmup_ratio=0.0, warmup_steps=None, decay_steps=None),
        train=replace(spec.train, max_steps=updates, num_train_epochs=None),
        checkpoint=replace(spec.checkpoint, save_steps=0, save_total_limit=10, metric_for_best_model="", save_async=False),
        evaluation=EvaluationSection(eval_steps=0, eval_on_start=False),
        logging=LoggingSection(logging_steps=1, log_samples=True),
        profiling=ProfilingSection(),
    )
