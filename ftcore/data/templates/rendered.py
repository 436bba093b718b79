"""A row as text, before it is tokenised."""

from __future__ import annotations

from dataclasses import dataclass

from ftcore.data.templates.rendering import CharSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """Text to tokenise, and its supervised characters."""

    text: str
    spans: tuple[CharSpan, ...]
    """Half-open, in order, not overlapping: answers with their turn ends."""
    weights: tuple[float, ...]
    """What each token of a span counts, over 0; one a span."""
    cut: bool = False
    """Whether the text must be tokenised apart at each span's start (prompt + completion)."""
    adds_bos: bool = False
    """Whether the tokenizer's own beginning-of-text token goes first; a chat template writes its own."""
    turns: tuple[int, ...] = ()
    """Characters where a turn begins, the first after the head."""
    plain: tuple[CharSpan, ...] = ()
    """Parts that spell a control token and are text all the same: they stand in somebody's message."""
