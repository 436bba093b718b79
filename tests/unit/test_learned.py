"""data.loss_on, rows that no template renders, and where turns begin."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftcore.data.formats.record_kinds import Conversation, PlainText, Record, TextPair, TokenIds
from ftcore.data.templates.renderer import ChatRenderer
from ftcore.data.templates.tokenise import tokenise_with
from ftcore.data.tokens import Tokens
from tests.unit.chats import ROW, TOOL, call, chat, learned
from tests.unit.made_tokenizers import CHATML, FAMILIES, HEADER, IM, byte_level, sentencepiece_like, wrap
from tests.unit.test_named_templates import made

END = "<|im_end|>"
TALK = chat("s S", "u a", "a b", "u c", "a d", "a e", weights={4: 2.0, 2: 0.5})
LISTS = chat("u a", "a b", "u c", "a d", "u e", "a f", start=3)
WHOLE = f"<|im_start|>user\na{END}\n<|im_start|>assistant\nb{END}\n"


@cache
def chatml() -> Any:
    return wrap(byte_level(specials=IM), template=CHATML, eos=END, pad=END)


def taught(record: Record, loss_on: str, tokenizer: Any = None) -> list[tuple[str, float]]:
    """Each supervised text with its weight."""
    used = tokenizer or chatml()
    (tokens,) = tokenise_with(used, loss_on)([record])
    return list(zip(learned(used.backend_tokenizer, tokens), tokens.weights, strict=True)) if isinstance(tokens, Tokens) else [(str(tokens), 0)]


@pytest.mark.parametrize(
    ("loss_on", "record", "expected"),
    [
        ("assistant", TALK, [("b", 0.5), ("d", 2), ("e", 1)]),
        ("last_assistant", TALK, [("e", 1)]),
        ("completion", TALK, [("d", 2), ("e", 1)]),
        ("assistant", LISTS, [("d", 1), ("f", 1)]),
        ("last_assistant", LISTS, [("f", 1)]),
        ("completion", LISTS, [("d", 1), ("f", 1)]),
        ("last_assistant", chat("u a", "a b", "u c"), [("b", 1)]),
        ("completion", chat("u a", "a b", "u c"), []),
        ("last_assistant", chat("u a", "a b", "u c", "a d", weights={3: 0.0}), []),
        ("last_assistant", chat("a greeting", "u a", "a b"), [("b", 1)]),
        ("completion", chat("u a", "a b", "u c", "a d", "s e", "a f"), [("f", 1)]),
    ],
)
def test_which_answers_are_learned(loss_on: str, record: Conversation, expected: list[tuple[str, float]]) -> None:
    assert taught(record, loss_on) == [(text + END, weight) for text, weight in expected]


def test_completion_begins_after_a_tools_result() -> None:
    tokenizer = made("chatml")[2]
    row = chat("u a", call(), "t done", "a b", tools=[TOOL])
    assert taught(row, "completion", tokenizer) == [("b" + END, 1)]
    assert len(taught(row, "assistant", tokenizer)) == 2


def test_all_counts_prompts_too() -> None:
    assert taught(chat("u a", "a b"), "all") == [(WHOLE, 1)]
    weighted = taught(chat("u a", "a b", weights={1: 3.0}), "all")
    assert ("b" + END, 3) in weighted
    assert "".join(text for text, _ in weighted) == WHOLE
    assert "".join(text for text, _ in taught(chat("u a", "a b", weights={1: 0.0}), "all")) == WHOLE.replace("b" + END, "")
    assert taught(TextPair(row=ROW, prompt="ab", completion="cd", weight=2.0), "all") == [("ab", 2), ("cd" + END, 2)]
    assert taught(TextPair(row=ROW, prompt="ab", completion="cd", weight=0.0), "all") == []


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_all_with_every_kind_of_tokenizer(family: Any) -> None:
    tokenizer = family.make()
    (tokens,) = tokenise_with(tokenizer, "all")([chat("u Hi, you.", "a Hello: one.", "u More?\n", "a No")])
    assert isinstance(tokens, Tokens), str(tokens)
    assert tokens.spans == ((0, len(tokens.ids)),)
    assert tokens.supervised == len(tokens.ids) - 1


@pytest.mark.parametrize("loss_on", ["assistant", "last_assistant", "completion"])
def test_a_pairs_completion_whatever_the_rule(loss_on: str) -> None:
    assert taught(TextPair(row=ROW, prompt="ab", completion="cd"), loss_on) == [("cd" + END, 1)]


@pytest.mark.parametrize("loss_on", ["assistant", "all"])
def test_texts(loss_on: str) -> None:
    """Every token of a text and the end token, once; nothing of a blank one."""
    assert taught(PlainText(row=ROW, text="Some text.\n"), loss_on) == [("Some text.\n" + END, 1)]
    assert taught(PlainText(row=ROW, text="Some text." + END), loss_on) == [("Some text." + END, 1)]
    assert taught(PlainText(row=ROW, text=" \n"), loss_on) == []
    assert "so a text can't be ended" in taught(PlainText(row=ROW, text="a"), loss_on, wrap(byte_level(specials=IM), template=None, eos=None))[0][0]


@pytest.mark.parametrize(
    "tokenizer",
    [
        wrap(byte_level(specials=HEADER, bos=HEADER[0]), template=None, eos="<|eot_id|>", bos=HEADER[0]),
        wrap(sentencepiece_like(specials=("<s>", "</s>"), bos="<s>"), template=None, eos="</s>", bos="<s>"),
    ],
    ids=["byte-level", "sentencepiece"],
)
@pytest.mark.parametrize("record", [PlainText(row=ROW, text="Some text."), TextPair(row=ROW, prompt="", completion="Some text.")], ids=["text", "pair"])
def test_texts_begin_with_one_beginning_of_text(tokenizer: Any, record: Record) -> None:
    """D13: put in front by us, or written in the row; it is never a label."""
    (tokens,) = tokenise_with(tokenizer)([record])
    assert isinstance(tokens, Tokens), str(tokens)
    assert tokens.ids.tolist().count(tokenizer.bos_token_id) == 1 and tokens.ids[0] == tokenizer.bos_token_id and tokens.front == 1
    assert tokens.supervised == len(tokens.ids) - 1
    if isinstance(record, PlainText):
        (written,) = tokenise_with(tokenizer)([PlainText(row=ROW, text=tokenizer.bos_token + record.text)])
        assert isinstance(written, Tokens)
        assert written.ids.tolist().count(tokenizer.bos_token_id) == 1


def test_tokens_stay_as_they_are() -> None:
    ids = np.array([5, 6, 7, 8], dtype=np.int32)
    row = TokenIds(row=ROW, ids=ids, spans=((0, 1), (2, 4)))
    tokens, unknown = tokenise_with(chatml())([row, TokenIds(row=ROW, ids=np.array([1, 9999], dtype=np.int32), spans=((0, 2),))])
    assert isinstance(tokens, Tokens)
    assert (tokens.ids.tolist(), tokens.spans, tokens.weights) == ([5, 6, 7, 8], ((0, 1), (2, 4)), (1.0, 1.0))
    assert "token id 9999 is none of the" in str(unknown)


def test_end_token_inside_a_completion() -> None:
    assert f"the completion holds the end token '{END}' before its end" in taught(TextPair(row=ROW, prompt="a", completion=f"b{END}c"), "assistant")[0][0]


PLAIN = st.text(alphabet="ab \n.é", min_size=1, max_size=8)
SPLIT = ("chatml", "llama3", "qwen2.5", "phi3", "gemma", "mistral")


@pytest.mark.parametrize("name", SPLIT)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(turns=st.lists(st.tuples(PLAIN, PLAIN), min_size=2, max_size=4), system=st.one_of(st.none(), PLAIN))
def test_a_turn_with_the_head_is_the_row_with_that_turn_alone(name: str, turns: list[tuple[str, str]], system: str | None) -> None:
    """What split cuts out is what the template would have written."""
    tokenise = made(name)[1]
    head = [] if system is None or name in ("gemma", "mistral") else ["s " + system]
    (whole,) = tokenise([chat(*head, *(text for question, answer in turns for text in ("u " + question, "a " + answer)))])
    assert isinstance(whole, Tokens)
    cuts = [*whole.turns, len(whole.ids)]
    assert len(cuts) == len(turns) + 1
    for number, (question, answer) in enumerate(turns):
        (alone,) = tokenise([chat(*head, "u " + question, "a " + answer)])
        assert isinstance(alone, Tokens)
        assert whole.ids[: cuts[0]].tolist() + whole.ids[cuts[number] : cuts[number + 1]].tolist() == alone.ids.tolist()


def test_rows_whose_head_can_not_be_cut_off() -> None:
    """A system message inside the first question belongs to no head; one turn is no turns."""
    assert made("mistral")[0].render(chat("s S", "u a", "a b", "u c", "a d")).turns == ()
    assert ChatRenderer(chatml()).render(chat("u a", "a b")).turns == ()
    assert ChatRenderer(chatml()).render(chat("u ", "a b", "u ", "a d")).turns == ()
