"""The likely causes of what a loss curve shows, in the order to check them, each with the numbers of this run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ftcore.diagnostics.curve import median
from ftcore.diagnostics.findings import Cause, Observation, RunFacts

JUMP = 3.0
"""Times the usual gradient norm from which a norm stands out: norms of neighbouring updates differ by less than half of this."""
OFTEN = 0.5
"""Share of clipped updates from which clipping, not the learning rate, sets the step."""
OVERFLOW_MEMORY = 5
"""Observations for which a fallen loss scale counts as just before."""


def likely_causes(kind: str, recent: Sequence[Observation], facts: RunFacts) -> tuple[Cause, ...]:
    """Clipping, learning rate against batch, loss scale, outlier samples: for a finding of `kind` at the last of `recent`."""
    return (_clipping(kind, recent, facts), _learning_rate(kind, recent, facts), _loss_scale(kind, recent), _samples(kind, recent))


def _usual_norm(recent: Sequence[Observation]) -> float:
    norms = [observation.grad_norm for observation in recent[:-1] if observation.is_finite]
    return median(norms) if norms else 0.0


def _clipping(kind: str, recent: Sequence[Observation], facts: RunFacts) -> Cause:
    now, usual = recent[-1], _usual_norm(recent)
    times = f", {now.grad_norm / usual:.1f} times the usual {usual:.3g}" if usual > 0 else ""
    norm = f"gradient norm {now.grad_norm:.3g}{times}"
    if kind == "plateau":
        return Cause(name="clipping", suspected=False, what=f"{norm}: nothing is clipped, there is no gradient")
    if facts.max_grad_norm <= 0:
        jumped = usual > 0 and now.grad_norm > JUMP * usual
        return Cause(name="clipping", suspected=jumped, what=f"{norm}, and optimizer.max_grad_norm is 0, which never clips: set it to {2 * usual:.2g}")
    clipped = sum(observation.clipped for observation in recent)
    often = clipped >= OFTEN * len(recent)
    what = f"{norm}; above its limit in {clipped} of the last {len(recent)} logged updates (optimizer.max_grad_norm {facts.max_grad_norm:g})"
    advice = ": clipping sets the size of most steps, so the learning rate is too high for this limit" if often else ""
    return Cause(name="clipping", suspected=often, what=what + advice)


def _learning_rate(kind: str, recent: Sequence[Observation], facts: RunFacts) -> Cause:
    now = recent[-1]
    share = now.learning_rate / facts.learning_rate if facts.learning_rate > 0 else 0.0
    left = facts.warmup_updates - now.update
    warmup = f"{left} updates of warm-up are left" if left > 0 else f"warm-up of {facts.warmup_updates} updates is over"
    position = f"update {now.update} of {facts.total_updates}, {warmup}"
    what = f"learning rate {now.learning_rate:.3g} is {share:.0%} of its peak at {position}; {facts.global_batch_size} samples an update"
    if kind == "plateau":
        return Cause(name="learning_rate", suspected=False, what=f"{what}: without a gradient no learning rate helps")
    is_high = share >= 0.5
    advice = ": halve optimizer.learning_rate, or double batch.global_batch_size" + (" and warm up for longer" if facts.warmup_updates < 10 else "")
    return Cause(name="learning_rate", suspected=is_high, what=what + (advice if is_high else ""))


def _loss_scale(kind: str, recent: Sequence[Observation]) -> Cause:
    now = recent[-1].loss_scale
    if now is None:
        return Cause(name="loss_scale", suspected=False, what="no loss scale in this precision")
    if kind == "plateau":
        return Cause(name="loss_scale", suspected=True, what=f"loss scale {now:g}: gradients may be too small for fp16; train in bf16, or look at keep_in_fp32")
    scaled = [(observation.update, observation.loss_scale) for observation in recent if observation.loss_scale is not None]
    falls = [(update, before, after) for (_, before), (update, after) in itertools.pairwise(scaled) if after < before]
    if not falls:
        return Cause(name="loss_scale", suspected=False, what=f"loss scale {now:g}, without an overflow in the last {len(recent)} logged updates")
    update, before, after = falls[-1]
    is_near = update >= recent[-min(OVERFLOW_MEMORY, len(recent))].update
    what = f"fp16 overflowed at update {update}: the loss scale fell from {before:g} to {after:g}, {len(falls)} times in the last {len(recent)} logged updates"
    return Cause(name="loss_scale", suspected=is_near, what=what)


def _samples(kind: str, recent: Sequence[Observation]) -> Cause:
    now, usual = recent[-1], _usual_norm(recent)
    if kind == "plateau":
        what = "no trained parameter gets a gradient: look at method.target_modules, frozen groups, and what is supervised"
        return Cause(name="samples", suspected=True, what=what)
    ids = ", ".join(map(str, now.samples)) or "not given (logging.log_samples: true writes them down)"
    stands_out = kind == "spike" and usual > 0 and now.grad_norm > JUMP * usual
    return Cause(name="samples", suspected=stands_out, what=f"samples of update {now.update} to look at: {ids}")
