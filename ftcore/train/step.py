"""One update: every micro-step's forward and weighted backward, then one optimizer step."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ftcore.batch.collate import MicroBatch
from ftcore.dist import sum_over_ranks
from ftcore.engine import Engine
from ftcore.spec.errors import TrainingError
from ftcore.train.loss import token_loss_sum


@dataclass(slots=True)
class PhaseSeconds:
    """Wall seconds that this rank spent; on a GPU forward and backward are the time to queue the work."""

    data: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    step: float = 0.0


@dataclass(slots=True)
class UpdateResult:
    """What one update did, the same on every rank but for `seconds`."""

    loss: float
    """Sum of token losses over the update divided by its supervised tokens."""
    grad_norm: float
    """Global, before clipping."""
    seconds: PhaseSeconds = field(default_factory=PhaseSeconds)


def run_update(engine: Engine, batches: Sequence[MicroBatch], *, supervised_tokens: int, learning_rate: float, check_count: bool) -> UpdateResult:
    """Trains one update of `supervised_tokens` over all ranks; `batches` are this rank's, as many as on every rank.

    Raises TrainingError, on every rank and before the optimizer step, when the loss is not finite, and,
    with `check_count`, when the ranks together hold another number of labels than the plan says. After a
    gradient that is not finite the parameters are unchanged.
    """
    ranks, seconds = engine.ranks, PhaseSeconds()
    weight = ranks.world_size / supervised_tokens
    loss_sum, labels = 0.0, 0
    clock = time.perf_counter()
    engine.begin_update(len(batches))
    for index, held in enumerate(batches):
        batch = held.to(ranks.device)
        loss = token_loss_sum(engine.deepspeed, batch)
        clock = _charge(seconds, "forward", clock)
        engine.backward(loss, weight=weight, last=index == len(batches) - 1)
        loss_sum += float(loss.detach())
        labels += batch.supervised_tokens
        clock = _charge(seconds, "backward", clock)
    engine.end_backwards()
    total, counted = sum_over_ranks([loss_sum, labels], ranks)
    if check_count and int(counted) != supervised_tokens:
        found = f"the ranks hold {int(counted)} supervised tokens, the plan says {supervised_tokens}"
        raise TrainingError(found, where="update", fix="delete the data cache and run again; then report it")
    if not math.isfinite(total):
        fix = "lower optimizer.learning_rate or look at the samples named in events.jsonl"
        raise TrainingError(f"the loss is {total}; no parameter was changed", where="loss", fix=fix)
    norm = _checked_step(engine, learning_rate)
    _charge(seconds, "step", clock)
    return UpdateResult(loss=total / supervised_tokens, grad_norm=norm, seconds=seconds)


def _checked_step(engine: Engine, learning_rate: float) -> float:
    before = engine.gradient_norm_before_step()
    if before is not None:
        _require_finite(before)
    after = engine.step(learning_rate)
    norm = after if before is None else before
    _require_finite(norm)
    return norm


def _require_finite(norm: float) -> None:
    if not math.isfinite(norm):
        raise TrainingError(
            f"the gradient norm is {norm}; the step was not taken and no parameter was changed",
            where="gradient",
            fix="lower optimizer.learning_rate, use precision fp32, or look at the samples named in events.jsonl",
        )


def _charge(seconds: PhaseSeconds, phase: str, since: float) -> float:
    now = time.perf_counter()
    setattr(seconds, phase, getattr(seconds, phase) + now - since)
    return now
