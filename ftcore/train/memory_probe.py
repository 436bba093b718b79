"""Tries the heaviest micro-steps of a run before its first update: memory that runs out does so at once, and not at the longest batch hours later."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import torch

from ftcore.batch.collate import collate
from ftcore.batch.heaviest import HeavyStep, heaviest_steps
from ftcore.checkpoint.rng import random_state_kept
from ftcore.engine import Engine
from ftcore.engine_state import loss_scale_state, set_loss_scale_state
from ftcore.feed.fed_update import Int64s
from ftcore.model.adapters import adapter_names
from ftcore.out_of_memory import describe_out_of_memory
from ftcore.spec.errors import Problem, TrainingError
from ftcore.spec.events import emit, emit_at
from ftcore.train.clip import clip_groups
from ftcore.train.job import Job
from ftcore.train.step import Update, run_update

SHOWN_SAMPLES = 12
_COUNTERS = ("micro_steps", "global_steps", "global_samples", "skipped_steps")
"""Of DeepSpeed's engine (runtime/engine.py)."""


def probe_memory(engine: Engine, job: Job) -> None:
    """Computes the heaviest micro-steps forwards and backwards, and throws their gradients away; nothing of the run's state is other afterwards.

    Of a stream nothing is known beforehand, and nothing is tried. Every rank calls it, and each tries the same ones. Raises TrainingError when memory
    runs out, with the samples and what to lower.
    """
    if job.sequence is None or job.train is None:
        return
    layout, ranks = job.layout, engine.ranks
    steps = heaviest_steps(
        job.sequence,
        job.train.lengths,
        job.train.supervised,
        world_size=ranks.world_size,
        micro_batch_tokens=layout.micro_batch_tokens,
        attention_share=layout.attention_share,
        layout=layout.layout,
    )
    if ranks.is_first:
        emit("progress", stage="load", done=0, total=len(steps), text=f"trying the heaviest micro-step: {steps[0].tokens} tokens")
    for step in steps:
        emit_at("load")
        with _state_kept(engine), samples_named(job, [step.sample_ids], _described(step)):
            # A second one adds to the gradients of the first, as in the update that it is of.
            _try(engine, job, step, times=1 if step.is_alone else 2)


def _try(engine: Engine, job: Job, step: HeavyStep, *, times: int) -> None:
    """A whole update of the step whose gradients are NaN, so that it is refused as any such update is: on all ranks, and with nothing changed."""
    batch = collate([job.train.sample(int(sample)) for sample in step.sample_ids], job.layout.layout)
    momentum = job.spec.optimizer.muon_momentum if job.spec.optimizer.type == "muon" else None
    update = Update(
        weight_sum=math.nan, learning_rate=0.0, adapters=adapter_names(engine.module), clip_groups=clip_groups(engine, job.spec), muon_momentum=momentum
    )
    result = run_update(engine, [batch] * times, update)
    if result.outcome.applied:
        raise TrainingError("an update with gradients that are not finite was taken", where="memory probe", fix="report it")


@contextlib.contextmanager
def _state_kept(engine: Engine) -> Iterator[None]:
    """Puts back what a refused update changes: random states, buffers, the loss scale and DeepSpeed's counters."""
    inner = engine.deepspeed
    counters = {name: getattr(inner, name) for name in _COUNTERS}
    buffers = {name: buffer.detach().clone() for name, buffer in engine.module.named_buffers()}
    scale = loss_scale_state(engine)
    with random_state_kept():
        yield
    set_loss_scale_state(engine, scale)
    with torch.no_grad():
        for name, buffer in engine.module.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
    for name, value in counters.items():
        setattr(inner, name, value)


@contextlib.contextmanager
def samples_named(job: Job, parts: Sequence[Int64s], what: str) -> Iterator[None]:
    """Memory that runs out within is told with the samples that were computed. Raises TrainingError then, anything else as it is."""
    try:
        yield
    except Exception as error:
        known = describe_out_of_memory(error)
        if known is None:
            raise
        budget, longest = job.spec.batch.micro_batch_tokens, job.spec.data.max_length
        fix = f"lower batch.micro_batch_tokens ({budget} now), which needs the longest sample's tokens at least, or data.max_length ({longest} now)"
        raise TrainingError([*known.problems, Problem(what=f"{what}: {_names(job, parts)}", where="memory", fix=fix)]) from error


def _described(step: HeavyStep) -> str:
    many = f"{step.tokens} tokens, {step.supervised_tokens} of them supervised, the longest sample has {step.longest}"
    return f"it was the heaviest micro-step of the run, tried before its first update ({many}; it comes in update {step.update + 1})"


def _names(job: Job, parts: Sequence[Int64s]) -> str:
    """The rows of the samples of some micro-steps, longest first."""
    samples = [int(sample) for part in parts for sample in part]
    if job.train is None:
        return f"{len(samples)} samples"
    by_length = sorted(samples, key=lambda sample: -int(job.train.lengths[sample]))
    sets = job.train.names
    named = [f"{sets[int(job.train.set_of[sample])]} row {int(job.train.rows[sample])} ({int(job.train.lengths[sample])})" for sample in by_length]
    more = f" and {len(named) - SHOWN_SAMPLES} more" if len(named) > SHOWN_SAMPLES else ""
    return f"samples by tokens: {', '.join(named[:SHOWN_SAMPLES])}{more}"
