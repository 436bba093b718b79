"""Token ids as text that a person reads: whole samples in pieces, supervised or not, and single tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

UNKNOWN = "\ufffd"
"""What a decoder writes for bytes that are no whole character."""
LEADING_SPACE = "\u2581"
"""SentencePiece's mark of a space before a token; its decoders leave it out at the beginning of a text."""
_PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))
_BYTES = {chr(byte): byte for byte in _PRINTED} | {chr(256 + at): byte for at, byte in enumerate(byte for byte in range(256) if byte not in _PRINTED)}
"""Letter of a byte-level vocabulary -> its byte: bytes that print stand for themselves, the others for letters from 256 on (GPT-2's encoder.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of a sample, all of it supervised or none."""

    text: str
    tokens: int
    weight: float
    """What each of its tokens counts in the loss; 0: it is context."""


def segments_of(backend: Any, ids: Sequence[int], spans: Sequence[tuple[int, int]], weights: Sequence[float]) -> list[Segment]:
    """The text of a sample cut where supervision begins and ends. `backend`: a `tokenizers.Tokenizer`."""
    edges: list[tuple[int, float]] = []
    for (start, end), weight in zip(spans, weights, strict=True):
        edges += [(start, 0.0), (end, float(weight))]
    edges.append((len(ids), 0.0))
    segments: list[Segment] = []
    whole = str(backend.decode(list(ids), skip_special_tokens=False))
    at = told = 0
    for end, weight in edges:
        if end <= at:
            continue
        before = str(backend.decode(list(ids[:end]), skip_special_tokens=False))
        # A character whose tokens are on both sides goes to the second one.
        until = next((index for index, (one, other) in enumerate(zip(before, whole, strict=False)) if one != other), min(len(before), len(whole)))
        segments.append(Segment(text=whole[told:until], tokens=end - at, weight=weight))
        at, told = end, until
    return segments


def token_text(backend: Any, token: int) -> str:
    """One token as text; one that is only part of a character, as its bytes: <0xE6 0x97>."""
    piece = backend.id_to_token(token)
    text = str(backend.decode([token], skip_special_tokens=False))
    if piece is None:
        return text
    if UNKNOWN in text and UNKNOWN not in piece:
        found = [_BYTES.get(letter) for letter in piece]
        return f"<{' '.join(f'0x{byte:02X}' for byte in found if byte is not None)}>" if None not in found else str(piece)
    return f" {text}" if piece.startswith(LEADING_SPACE) and not text.startswith(" ") else text
