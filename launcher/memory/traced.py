"""What a trace of one micro-step told, as items of the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.activation_row import Row
from launcher.memory.activations import AT_WORST
from launcher.memory.items import Item

SOURCE = "ftcore/exact_trace.py: the model run once on tensors without memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Bytes of one micro-step on one rank."""

    saved: int
    """After the forward pass, without the logits."""
    logits: int
    backward: int
    """By which the worst moment of loss and backward pass exceeds what the forward pass left."""
    operator: str
    """The operator of that moment."""


def traced_items(traced: Traced, resolved: ResolvedSpec, row: Row) -> Iterator[Item]:
    """The items that stand in place of those of launcher.memory.activations; those of no bytes are left out."""
    train = resolved.spec.train
    each = f"{row.tokens:,} tokens, {train.precision}, recomputed: {train.gradient_checkpointing}"
    lines = [
        ("activations", "activations", traced.saved, f"traced: what a forward pass leaves for the backward pass ({each})"),
        ("logits", "logits", traced.logits, f"traced: {row.supervised:,} supervised positions; their gradient takes the same memory"),
        (AT_WORST, "activations", traced.backward, f"traced: at {traced.operator or 'the loss'}"),
    ]
    for name, group, size, formula in lines:
        if size > 0:
            yield Item(name=name, group=group, bytes=size, formula=formula, source=SOURCE, phases=("backward",))
