"""Rows longer than data.max_length: dropped, cut, or split at their turns, and every token of theirs accounted for.

For each row, tokens read = tokens of its samples - tokens repeated + tokens dropped.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ftcore.data.tokens import Tokens

OVERLONG = "overlong"
NO_TARGETS = "no_supervised_tokens"

Piece = tuple[int, int]
"""A half-open range of a row's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What became of one row."""

    samples: tuple[Tokens, ...]
    """None or one; several of a row that was split."""
    outcome: str = ""
    """dropped, truncated or split; empty: the row is as it was."""
    reason: str = ""
    """Why it was dropped (overlong, no_supervised_tokens); else what happened, in words."""
    dropped_tokens: int = 0
    """Tokens that stand in no sample."""
    repeated_tokens: int = 0
    """Tokens that stand in several samples, counted for each but the first."""
    dropped_turns: int = 0
    """Turns of a row that was split which are longer than a sample may be."""
    lost_end: bool = False
    """Whether the last answer was cut before its end."""


def fit(tokens: Tokens, rule: str, max_length: int, *, is_text: bool) -> Fitted:
    """The samples of a row under data.overlong (`rule`); a row without supervised tokens is dropped whatever its length.

    `is_text`: whether the row is one text, which split cuts in blocks; else a row without turns can't be split, and is dropped.
    The rule `error` is the caller's: here it drops.
    """
    if len(tokens.ids) <= max_length:
        return Fitted(samples=(tokens,)) if tokens.supervised else _dropped(tokens, NO_TARGETS)
    if rule == "truncate_right":
        return _cut(tokens, cut_right(tokens, max_length), lost_end=bool(tokens.spans) and tokens.spans[-1][1] > max_length)
    if rule == "truncate_left":
        return _cut(tokens, cut_left(tokens, max_length))
    if rule == "split":
        return _split_text(tokens, max_length) if is_text else _split_turns(tokens, max_length)
    return _dropped(tokens, OVERLONG)


def cut_right(tokens: Tokens, max_length: int) -> Tokens:
    """The first `max_length` tokens, with the supervised ranges that remain and their weights."""
    return _sample(tokens, 0, (0, max_length))


def cut_left(tokens: Tokens, max_length: int) -> Tokens:
    """The beginning-of-text token, if the row has one, and the last tokens: `max_length` in all."""
    front = min(tokens.front, max_length)
    return _sample(tokens, front, (len(tokens.ids) - (max_length - front), len(tokens.ids)), after_gap=True)


def _sample(tokens: Tokens, head: int, piece: Piece, *, after_gap: bool = False) -> Tokens:
    """The first `head` tokens and a piece of those after them.

    A head that doesn't lead on to the piece is context only: its own targets are another sample's.
    `after_gap`: the piece's first token isn't supervised, for it would be learned from a text that it never followed.
    """
    first, last = piece
    if first <= head:
        head = first = 0
    start = first + 1 if after_gap and first else first
    shift = first - head
    kept = [
        ((max(begin, start) - shift, min(end, last) - shift), weight)
        for (begin, end), weight in zip(tokens.spans, tokens.weights, strict=True)
        if max(begin, start) < min(end, last)
    ]
    ids = np.concatenate([tokens.ids[:head], tokens.ids[first:last]]) if head else tokens.ids[first:last]
    return Tokens(ids=ids, spans=tuple(span for span, _ in kept), weights=tuple(weight for _, weight in kept), front=tokens.front)


def _dropped(tokens: Tokens, reason: str, *, turns: int = 0) -> Fitted:
    return Fitted(samples=(), outcome="dropped", reason=reason, dropped_tokens=len(tokens.ids), dropped_turns=turns)


def _cut(tokens: Tokens, kept: Tokens, *, lost_end: bool = False) -> Fitted:
    """What became of a row of which `kept` is left."""
    if not kept.supervised:
        return _dropped(tokens, NO_TARGETS)
    removed = len(tokens.ids) - len(kept.ids)
    reason = f"{removed} tokens cut off" + (", the end of its last answer too" if lost_end else "")
    return Fitted(samples=(kept,), outcome="truncated", reason=reason, dropped_tokens=removed, lost_end=lost_end)


def _split_text(tokens: Tokens, max_length: int) -> Fitted:
    """Blocks of a text, each beginning with the beginning-of-text token if the text does."""
    head, length = min(tokens.front, max_length - 1), len(tokens.ids)
    pieces = [(start, min(start + max_length - head, length)) for start in range(head, length, max_length - head)]
    return _pieced(tokens, head, pieces, after_gap=True)


def _split_turns(tokens: Tokens, max_length: int) -> Fitted:
    """The head again and again with as many whole turns as fit; a turn that doesn't fit by itself is left out, and none is put beside its gap."""
    if not tokens.turns:
        return _dropped(tokens, OVERLONG)
    head = tokens.turns[0]
    pieces: list[Piece] = []
    left_out = 0
    fresh = True
    for begin, end in itertools.pairwise([*tokens.turns, len(tokens.ids)]):
        if head + end - begin > max_length:
            left_out, fresh = left_out + 1, True
        elif fresh or head + end - pieces[-1][0] > max_length:
            pieces.append((begin, end))
            fresh = False
        else:
            pieces[-1] = (pieces[-1][0], end)
    return _pieced(tokens, head, pieces, left_out=left_out)


def _pieced(tokens: Tokens, head: int, pieces: list[Piece], *, left_out: int = 0, after_gap: bool = False) -> Fitted:
    """The samples of a row that was cut into pieces behind one head; those without targets are dropped."""
    made = [(piece, _sample(tokens, head, piece, after_gap=after_gap)) for piece in pieces]
    kept = [(piece, sample) for piece, sample in made if sample.supervised]
    if not kept:
        return _dropped(tokens, NO_TARGETS if pieces and not left_out else OVERLONG, turns=left_out)
    covered = head + sum(end - begin for (begin, end), _ in kept)
    words = [counted(len(kept), "sample")]
    words += [f"{counted(left_out, 'turn')} left out that {'is' if left_out == 1 else 'are'} longer than a sample may be"] if left_out else []
    idle = len(made) - len(kept)
    words += [f"{counted(idle, 'piece')} left out that {'has' if idle == 1 else 'have'} nothing to learn"] if idle else []
    return Fitted(
        samples=tuple(sample for _, sample in kept),
        outcome="split",
        reason=", ".join(words),
        dropped_tokens=len(tokens.ids) - covered,
        repeated_tokens=head * (len(kept) - 1),
        dropped_turns=left_out,
    )


def counted(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
