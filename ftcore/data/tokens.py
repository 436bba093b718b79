"""A row as the model sees it: token ids, and the ranges of them that are supervised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
TokenSpan = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """One row as the model sees it."""

    ids: Int32Array
    """[T]"""
    spans: tuple[TokenSpan, ...]
    """Half-open token ranges that are supervised, in order."""
    weights: tuple[float, ...]
    """What each token of a range counts, over 0; one a range."""
    turns: tuple[int, ...] = ()
    """Token positions where a turn (a user message and what follows it) begins, the first being the end of the head (beginning of text,
    system message, tools); empty where the row has no turns, or they can't be cut apart."""
    front: int = 0
    """Tokens in front that the tokenizer begins every text with (beginning of text): what a cut on the left keeps."""

    @property
    def supervised(self) -> int:
        """Labels that count: a label is predicted from the token before it, so position 0 never counts."""
        return count_supervised(self.spans)


def count_supervised(spans: Sequence[TokenSpan]) -> int:
    """Supervised tokens of half-open ranges after the shift."""
    return sum(end - max(start, 1) for start, end in spans if end > max(start, 1))
