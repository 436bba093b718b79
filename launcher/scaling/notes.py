"""What a reader of a scaling test has to know of how it was measured, in sentences. Pure functions."""

from __future__ import annotations

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.scale_result import ScalePoint, ScaleResult
from ftcore.spec.schedule_lengths import warmup_updates
from launcher.memory.cost import updates_of
from launcher.memory.lengths import DataLengths
from launcher.scaling.request import STRONG, ScaleRequest


def notes_of(request: ScaleRequest, result: ScaleResult, lengths: DataLengths) -> tuple[str, ...]:
    """The notes of a test with the points that it has so far; `lengths` are those of the training data."""
    notes = [*_threads(result), *_baselines(result), *_cut(request)]
    if request.mode != STRONG:
        notes += weak_notes(request.resolved, min(request.ranks), result, lengths)
    if lengths.is_assumed and result.measured and request.resolved.spec.train.max_steps is None:
        notes.append(f"the whole run's number of updates is a guess: {lengths.origin}")
    return tuple(notes)


def _threads(result: ScaleResult) -> list[str]:
    threads = {point.threads for point in result.measured if point.threads is not None}
    notes = [f"each rank had OMP_NUM_THREADS={count}" for count in sorted(threads)]
    crowded = [str(point.ranks) for point in result.measured if point.oversubscribed]
    if crowded:
        ranks = ", ".join(dict.fromkeys(crowded))
        notes.append(f"* oversubscribed: {ranks} ranks had fewer cores than threads; `by cores` divides by the cores that were used in place of the ranks")
    return [*notes, *_shared(result)]


def _shared(result: ScaleResult) -> list[str]:
    """Times of a machine that others use are longer, and not by the same for each point."""
    disturbed = [point for point in result.measured if point.is_disturbed]
    if not disturbed:
        return []
    most = max(point.busy_cores or 0.0 for point in disturbed)
    names = ", ".join(point.name for point in disturbed)
    return [f"NOT A QUIET MACHINE: other processes kept up to {most:.1f} cores busy when {names} began; speedups say little, losses are as right as ever"]


def _baselines(result: ScaleResult) -> list[str]:
    stages = dict.fromkeys(point.stage for point in result.measured)
    bases = {stage: base.ranks for stage in stages if (base := result.baseline(stage)) is not None}
    notes = []
    if set(bases.values()) - {1}:
        told = ", ".join(f"stage {stage}: {ranks}" for stage, ranks in bases.items()) if len(set(bases.values())) > 1 else str(next(iter(bases.values())))
        notes.append(f"speedup and efficiency are relative to the fewest ranks that were measured ({told}), not to one rank")
    if len(bases) > 1:
        notes.append("each stage is set against its own fewest ranks; s/update compares stages with each other")
    return notes


def _cut(request: ScaleRequest) -> list[str]:
    spec = request.resolved.spec
    notes = ["points evaluate nothing and keep no checkpoint or model; after the schedule's warm-up their learning rate stays, and speed does not depend on it"]
    if request.mode == STRONG and spec.method.lora_dropout:
        notes.append(f"dropout was 0 in place of {spec.method.lora_dropout:g} (method.lora_dropout): with it the losses could not agree")
    return notes


def weak_notes(resolved: ResolvedSpec, base: int, result: ScaleResult, lengths: DataLengths) -> list[str]:
    """How the update grew with the ranks, and what that does to the schedule of the whole run."""
    spec = resolved.spec
    unit, size = ("samples", spec.batch.global_batch_size) if spec.batch.global_batch_size is not None else ("tokens", spec.batch.tokens_per_update)
    before = updates_of(resolved, lengths)
    notes = [f"weak: the update grows with the ranks, from the spec's own of {size or 0:,} {unit} on {base} rank{'s' if base > 1 else ''}"]
    notes += [_grown(resolved, point, unit, before) for point in {point.ranks: point for point in result.measured}.values()]
    rate = f"optimizer.learning_rate stayed {spec.optimizer.learning_rate:g}: no rule for larger updates was applied"
    notes.append(f"{rate}, and whether training is as good was not measured")
    return notes


def _grown(resolved: ResolvedSpec, point: ScalePoint, unit: str, before: int) -> str:
    spec, updates = resolved.spec, point.run_updates or 0
    size = point.global_batch_size or point.tokens_per_update or 0
    times = size / (spec.batch.global_batch_size or spec.batch.tokens_per_update or size)
    if spec.train.max_steps is not None:
        length = f"train.max_steps keeps the run at {updates:,} updates, which see {times:g} times the {unit}"
    else:
        length = f"the run has {updates:,} updates in place of {before:,}"
    warm, warm_before = warmup_updates(spec.schedule, updates), warmup_updates(spec.schedule, before)
    warm_up = f"{warm:,} of them warm up" + (f" in place of {warm_before:,}" if warm != warm_before else "")
    return f"weak, {point.ranks} rank{'s' if point.ranks > 1 else ''}: an update of {size:,} {unit}; {length}, and {warm_up}"
