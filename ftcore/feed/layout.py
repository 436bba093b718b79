"""How samples become micro-steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How samples become micro-steps."""

    micro_batch_tokens: int
    attention_share: float
    """c in the cost l + c·l²."""
    layout: str = "packed"
    """packed or padded."""
