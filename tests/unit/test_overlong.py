"""Rows over data.max_length under each rule, and where their tokens went (E04)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcore.data.overlong import Fitted, cut_left, fit
from ftcore.data.tokens import Tokens, count_supervised

RULES = ("drop", "truncate_right", "truncate_left", "split")


def row(length: int, *spans: tuple[int, int], turns: tuple[int, ...] = (), front: int = 0) -> Tokens:
    """Tokens whose ids are their positions."""
    return Tokens(ids=np.arange(length, dtype=np.int32), spans=spans, weights=tuple(1.0 + n for n in range(len(spans))), turns=turns, front=front)


@st.composite
def rows(draw: st.DrawFn) -> Tokens:
    """Heads, turns with an answer each, and texts without turns."""
    front = draw(st.integers(0, 1))
    head = front + draw(st.integers(0, 6))
    turns, spans, at = [], [], head
    for _ in range(draw(st.integers(1, 6))):
        turns.append(at)
        asked, answered = draw(st.integers(0, 5)), draw(st.integers(1, 9))
        if draw(st.booleans()):
            spans.append((at + asked, at + asked + answered))
        at += asked + answered
    return row(at, *spans, turns=tuple(turns) if draw(st.booleans()) else (), front=front)


@given(tokens=rows(), rule=st.sampled_from(RULES), limit=st.integers(2, 40), is_text=st.booleans())
def test_every_token_is_accounted_for(tokens: Tokens, rule: str, limit: int, is_text: bool) -> None:
    """Row by row: read = kept - repeated + dropped; what is kept is the row's own tokens and targets, and none counts twice."""
    fitted = fit(tokens, rule, limit, is_text=is_text)
    kept = [int(token) for sample in fitted.samples for token in sample.ids]
    assert len(tokens.ids) == len(kept) - fitted.repeated_tokens + fitted.dropped_tokens
    assert len(kept) - len(set(kept)) == fitted.repeated_tokens
    own = {position: weight for (start, end), weight in zip(tokens.spans, tokens.weights, strict=True) for position in range(start, end)}
    learned: list[int] = []
    for sample in fitted.samples:
        assert 0 < len(sample.ids) <= limit
        assert count_supervised(sample.spans) == sample.supervised > 0
        assert len(sample.spans) == len(sample.weights)
        assert all(0 <= start < end <= len(sample.ids) for start, end in sample.spans)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(sample.spans))
        for (start, end), weight in zip(sample.spans, sample.weights, strict=True):
            learned += sample.ids[start:end].tolist()
            assert all(own[int(token)] == weight for token in sample.ids[start:end])
    assert len(learned) == len(set(learned))
    assert (fitted.outcome == "dropped") == (not fitted.samples)
    assert (fitted.outcome == "") == any(sample is tokens for sample in fitted.samples)


def ids(fitted: Fitted) -> list[list[int]]:
    return [sample.ids.tolist() for sample in fitted.samples]


def test_a_cut_on_the_right_tells_that_the_end_is_lost() -> None:
    tokens = row(10, (2, 4), (6, 10))
    fitted = fit(tokens, "truncate_right", 8, is_text=False)
    assert (ids(fitted), fitted.samples[0].spans, fitted.lost_end, fitted.dropped_tokens) == ([list(range(8))], ((2, 4), (6, 8)), True, 2)
    assert fit(tokens, "truncate_right", 6, is_text=False).lost_end
    assert not fit(row(10, (2, 4)), "truncate_right", 8, is_text=False).lost_end
    assert fit(row(10, (8, 10)), "truncate_right", 8, is_text=False).reason == "no_supervised_tokens"


def test_a_cut_on_the_left_keeps_the_beginning_of_text() -> None:
    """The first token after the gap is context: nothing that it follows from is left."""
    fitted = fit(row(10, (2, 8), front=1), "truncate_left", 6, is_text=False)
    assert (ids(fitted), fitted.samples[0].spans) == ([[0, 5, 6, 7, 8, 9]], ((2, 4),))
    assert not fitted.lost_end
    assert cut_left(row(10, (2, 8)), 6).spans == ((1, 4),)
    assert fit(row(10, (0, 2), front=1), "truncate_left", 6, is_text=False).reason == "no_supervised_tokens"


def test_a_split_repeats_the_head_and_keeps_turns_whole() -> None:
    tokens = row(14, (4, 6), (7, 9), (10, 14), turns=(2, 6, 9))
    fitted = fit(tokens, "split", 9, is_text=False)
    assert ids(fitted) == [[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 9, 10, 11, 12, 13]]
    assert [sample.spans for sample in fitted.samples] == [((4, 6), (7, 9)), ((3, 7),)]
    assert [sample.weights for sample in fitted.samples] == [(1.0, 2.0), (3.0,)]
    assert (fitted.outcome, fitted.reason, fitted.repeated_tokens, fitted.dropped_tokens) == ("split", "2 samples", 2, 0)


def test_a_turn_that_is_too_long_is_left_out_and_none_is_put_beside_the_gap() -> None:
    fitted = fit(row(16, (3, 4), (5, 13), (14, 16), turns=(2, 4, 13)), "split", 8, is_text=False)
    assert ids(fitted) == [[0, 1, 2, 3], [0, 1, 13, 14, 15]]
    assert (fitted.dropped_tokens, fitted.dropped_turns, fitted.reason) == (9, 1, "2 samples, 1 turn left out that is longer than a sample may be")


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (row(20, (5, 20)), "overlong"),
        (row(20, (5, 20), turns=(2,)), "overlong"),
        (row(20, (12, 20), turns=(12,)), "overlong"),
        (row(14, turns=(2, 6, 10)), "no_supervised_tokens"),
    ],
)
def test_rows_that_can_not_be_split(tokens: Tokens, reason: str) -> None:
    """No turns; one turn, or a head, longer than a sample may be; nothing to learn."""
    fitted = fit(tokens, "split", 9, is_text=False)
    assert (fitted.outcome, fitted.reason, fitted.dropped_tokens) == ("dropped", reason, len(tokens.ids))


def test_a_text_is_cut_in_blocks() -> None:
    fitted = fit(row(11, (1, 11), front=1), "split", 5, is_text=True)
    assert ids(fitted) == [[0, 1, 2, 3, 4], [0, 5, 6, 7, 8], [0, 9, 10]]
    assert [sample.spans for sample in fitted.samples] == [((1, 5),), ((2, 5),), ((2, 3),)]
    assert (fitted.repeated_tokens, fitted.dropped_tokens) == (2, 0)
    bare = fit(row(9, (0, 9)), "split", 4, is_text=True)
    assert ids(bare) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (bare.dropped_tokens, bare.reason) == (1, "2 samples, 1 piece left out that has nothing to learn")
