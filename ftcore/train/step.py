"""One update: every micro-step's forward and weighted backward, then one optimizer step.

Nothing here waits for the device or talks to other ranks but the engine itself and, at the first update of a run, the check of the counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ftcore.attribution.phases import BACKWARD, FORWARD, OPTIMIZER, OTHER
from ftcore.batch.collate import MicroBatch
from ftcore.dist import sum_over_ranks
from ftcore.engine import Engine, StepOutcome
from ftcore.engine_grads import forget_gradients, group_norms, scale_gradients_
from ftcore.engine_muon import orthogonalise_gradients_, refuse_step_
from ftcore.model.adapters import activate
from ftcore.spec.errors import TrainingError
from ftcore.spec.events import emit_at
from ftcore.train.loss import token_loss_sum

WEIGHT_TOLERANCE = 1e-6
"""Relative: sums of float32 weights in another order."""


@dataclass(slots=True)
class PhaseSeconds:
    """Wall seconds that this rank spent; on a GPU forward and backward are the time to queue the work."""

    forward: float = 0.0
    backward: float = 0.0
    step: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one update needs beside its micro-steps, the same on every rank."""

    weight_sum: float
    """Sum of the weights of its supervised tokens over all ranks: their number where no message has a weight of its own."""
    learning_rate: float
    adapters: tuple[str, ...] = ()
    """Adapters that are each trained on every micro-step; empty: the model as it is."""
    clip_groups: ClipGroups | None = None
    """Norms clipped apart; None: DeepSpeed clips the global norm."""
    muon_momentum: float | None = None
    """Of the optimizer muon, which always has clip groups; None: another steps along the gradient."""
    check_count: bool = False
    """Prove that the ranks together hold the labels that the plan counted."""


@dataclass(frozen=True, slots=True)
class ClipGroups:
    """Which parameters share a norm, and what it is clipped to."""

    group_of: dict[str, int]
    """Parameter -> number of its group."""
    limits: tuple[float, ...]
    """By group; 0 never clips."""
    names: tuple[str, ...]
    """By group: a pattern of the spec, an adapter with one, or default."""


@dataclass(slots=True)
class UpdateResult:
    """What one update did; `loss_sums` is this rank's part, the rest is the same on every rank but for `seconds`."""

    outcome: StepOutcome
    loss_sums: torch.Tensor
    """fp32 [micro-steps, adapters or 1]: weighted token losses of this rank's micro-steps, on its device."""
    group_norms: list[float] = field(default_factory=list)
    """Norms before clipping, by clip group."""
    seconds: PhaseSeconds = field(default_factory=PhaseSeconds)


def run_update(
    engine: Engine,
    batches: Sequence[MicroBatch],
    update: Update,
    *,
    before_step: Callable[[], None] = lambda: None,
    enters: Callable[[int], object] = lambda phase: None,
) -> UpdateResult:
    """Trains one update; `batches` are this rank's micro-steps, as many as on every rank. `before_step` is called once the last gradient is there.

    `enters` is told of each phase that begins (ftcore.attribution.phases).

    Raises TrainingError, on every rank and before the optimizer step, when the count is checked and wrong.
    A loss or gradient that is not finite leaves the parameters as they were: `outcome.applied` says so.
    """
    if update.check_count:
        _check_count(engine, batches, update.weight_sum)
    seconds = PhaseSeconds()
    weight = engine.ranks.world_size / update.weight_sum
    losses: list[torch.Tensor] = []
    passes = [(batch, adapter) for batch in batches for adapter in update.adapters or ("",)]
    clock = time.perf_counter()
    forget_gradients(engine)
    engine.begin_update(len(passes))
    for index, (held, adapter) in enumerate(passes):
        enters(FORWARD)
        if adapter:
            activate(engine.module, adapter)
        emit_at("train")
        loss = token_loss_sum(engine.deepspeed, held.to(engine.ranks.device))
        clock = _charge(seconds, "forward", clock)
        enters(BACKWARD)
        engine.backward(loss, weight=weight, last=index == len(passes) - 1)
        losses.append(loss.detach())
        clock = _charge(seconds, "backward", clock)
    engine.end_backwards()
    enters(OTHER)
    before_step()
    enters(OPTIMIZER)
    norms = _clip_by_group(engine, update.clip_groups) if update.clip_groups is not None else []
    if update.muon_momentum is not None and all(map(math.isfinite, norms)):
        orthogonalise_gradients_(engine, update.muon_momentum)
    outcome = engine.step(update.learning_rate)
    _charge(seconds, "step", clock)
    enters(OTHER)
    return UpdateResult(outcome, torch.stack(losses).view(len(batches), -1), norms, seconds)


def _check_count(engine: Engine, batches: Sequence[MicroBatch], planned: float) -> None:
    mine = sum(batch.supervised_tokens if batch.weights_K is None else float(batch.weights_K.sum(dtype=torch.float64)) for batch in batches)
    [counted] = sum_over_ranks([mine], engine.ranks)
    if abs(counted - planned) > WEIGHT_TOLERANCE * planned:
        found = f"the ranks hold {counted:g} supervised tokens, the plan says {planned:g}"
        raise TrainingError(found, where="update", fix="delete the data cache and run again; then report it")


def _clip_by_group(engine: Engine, groups: ClipGroups) -> list[float]:
    """Scales down the gradients of each group whose norm is over its limit; returns the norms before. A norm that is not finite refuses the step."""
    norms = group_norms(engine, groups.group_of)
    if not all(map(math.isfinite, norms)):
        # Gradients that are finite may have such a norm: its limit over it would make them 0, and the step would be taken.
        refuse_step_(engine)
        return norms
    factors = [limit / (norm + 1e-6) if limit and norm > limit else 1.0 for norm, limit in zip(norms, groups.limits, strict=True)]
    scale_gradients_(engine, lambda name: factors[groups.group_of[name]] if name in groups.group_of else 1.0)
    return norms


def _charge(seconds: PhaseSeconds, phase: str, since: float) -> float:
    now = time.perf_counter()
    setattr(seconds, phase, getattr(seconds, phase) + now - since)
    return now
