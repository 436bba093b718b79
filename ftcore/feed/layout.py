"""How samples become micro-steps."""

from __future__ import annotations

from dataclasses import dataclass

from ftcore.batch.cost import AttentionShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How samples become micro-steps."""

    micro_batch_tokens: int
    attention_share: float | AttentionShare
    """What attention adds to the cost of a sample; a number is c in l + c·l²."""
    layout: str = "packed"
    """packed or padded."""
