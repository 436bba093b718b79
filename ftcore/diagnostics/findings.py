"""What a watch is fed and what it answers; plain data, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is fixed in a run and needed to judge its curve."""

    max_grad_norm: float
    """0: never clipped."""
    learning_rate: float
    """The schedule's highest."""
    warmup_updates: int
    total_updates: int
    global_batch_size: int
    """Samples an update; of a run that counts tokens, its mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One logged update."""

    update: int
    """From 1."""
    loss: float
    """Per supervised token; not finite for an update that was skipped."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    clipped: bool
    """Whether the norm was above its limit."""
    loss_scale: float | None = None
    """fp16 only."""
    samples: tuple[int, ...] = ()
    """Ids of the update's samples to look at first: its longest, or those of the highest loss."""

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing to check, with this run's numbers."""

    name: str
    """clipping, learning_rate, loss_scale or samples; of a memory_leak what grew, of a slow_rank what makes it slow."""
    suspected: bool
    """Whether the numbers speak for it."""
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something worth a look, told once while it lasts."""

    kind: str
    """spike, oscillation, divergence, plateau, memory_leak or slow_rank."""
    update: int
    what: str
    """One line with the numbers."""
    causes: tuple[Cause, ...] = ()
    """In the order to check."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """More of a kind's own fields, of plain data."""

    def to_record(self) -> dict[str, Any]:
        """What events.jsonl holds of it."""
        causes = [{"name": cause.name, "suspected": cause.suspected, "what": cause.what} for cause in self.causes]
        return {"kind": self.kind, "update": self.update, "what": self.what, "causes": causes, **self.facts}

    def text(self) -> str:
        """One line for the terminal: what was found, and the first cause that the numbers speak for, or else the first to check."""
        suspected = [cause for cause in self.causes if cause.suspected] or list(self.causes)
        return f"{self.what}. Check first: {suspected[0].what}" if suspected else self.what
