"""How far two right runs may lie apart: ten times what was measured between two orders of the same sums, within bounds of the precision."""

from __future__ import annotations

import math
from dataclasses import dataclass

EPSILON = {"fp32": 2.0**-23, "bf16": 2.0**-7, "bf16_autocast": 2.0**-7, "fp16": 2.0**-10}
"""Precision -> distance of 1 from the next number of the type that the matrix products are in."""
MARGIN = 10.0
"""Times the floor: other numbers of ranks and micro-steps round more often than a reordered sum."""
ROOM = 10.0
"""Times the least tolerance is the highest one of losses and norms, whatever the floor: a wrong sum must not widen its own tolerance."""
MOST_OF_A_MOVE = 0.5
"""Highest tolerance of the parameters' gap: above it a gap says nothing."""
LEAST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """Relative distances of one run from another, the largest over its updates; as tolerances, what may not be exceeded."""

    loss: float
    grad_norm: float
    parameters: float


def least_tolerance(precision: str, optimizer: str) -> Distance:
    """What is tolerated even where the floor is zero.

    Losses are means over many tokens, in which roundings cancel: 1e-5 in fp32, epsilon / 16 else. Norms: 1e-4 in fp32, epsilon else.
    Parameters: SGD's step is linear in the gradient, 16 epsilon. AdamW's first steps are near the gradient's sign: with gradients spread
    like a normal distribution and errors of epsilon / 2 relative to that spread, a share of 0.2·epsilon of them changes sign, each by
    twice its step, so that the move changes by sqrt(4 · 0.2 · epsilon) of itself; rounded up to sqrt(epsilon). With adamw_8bit in fp32 all
    three are those of bf16: moments have 64 steps a decade, and which of them share a scale depends on the split.
    """
    precision = "bf16" if optimizer == "adamw_8bit" and precision == "fp32" else precision
    epsilon, is_fp32 = EPSILON[precision], precision == "fp32"
    parameters = 16 * epsilon if optimizer == "sgd" else math.sqrt(epsilon)
    return Distance(loss=1e-5 if is_fp32 else epsilon / 16, grad_norm=1e-4 if is_fp32 else epsilon, parameters=max(LEAST, parameters))


def tolerance(floor: Distance, least: Distance) -> Distance:
    """max(least, 10 · floor), with the highest tolerances above."""
    return Distance(
        loss=_within(floor.loss, least.loss, ROOM * least.loss),
        grad_norm=_within(floor.grad_norm, least.grad_norm, ROOM * least.grad_norm),
        parameters=_within(floor.parameters, least.parameters, MOST_OF_A_MOVE),
    )


def _within(floor: float, least: float, most: float) -> float:
    # A floor that is no number gives no room.
    wanted = MARGIN * floor if math.isfinite(floor) else least
    return min(max(least, wanted), most)
