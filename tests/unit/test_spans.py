"""Supervised tokens, decoded, are the answers and their ends, or the row is refused (cases D11, D13, D17)."""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftcore.data.formats.record_kinds import Conversation, TextPair
from ftcore.data.reading.rows import Row
from ftcore.data.templates.aligner import Aligner
from ftcore.data.templates.renderer import ChatRenderer
from ftcore.data.templates.tokenise import tokenise_with
from ftcore.data.tokens import Tokens, count_supervised
from ftcore.spec.errors import DataError
from tests.unit.made_tokenizers import FAMILIES, HEADER, IM, LLAMA3, MISTRAL, byte_level, sentencepiece_like, wrap

ROW = Row(number=1, file="x.jsonl", line=1, value={})
ODD = [
    "",
    " ",
    "\n",
    "\n\n",
    "\n\nHello",
    "  two",
    "ends \n",
    "tab\t",
    "👍🏽",
    "é",
    "e\u0301",
    "日本語",
    "naïve",
    "1,234.50",
    ": a",
    "] x",
    "\u00a0x",
    "\u2028",
    "a\r\nb",
    "x" * 60,
    "\u200b",
]
CONTENT = st.one_of(
    st.sampled_from(ODD),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20),
    st.tuples(st.sampled_from(ODD), st.sampled_from(ODD)).map("".join),
)


@cache
def made(index: int) -> tuple[ChatRenderer, Aligner, Any]:
    tokenizer = FAMILIES[index].make()
    return ChatRenderer(tokenizer), Aligner(tokenizer), tokenizer.backend_tokenizer


def decoded(backend: Any, tokens: Tokens) -> list[str]:
    """The supervised tokens of each span, decoded where they stand."""
    ids = tokens.ids.tolist()
    until = [backend.decode(ids[:end], skip_special_tokens=False) for _, end in tokens.spans]
    return [text[len(backend.decode(ids[:start], skip_special_tokens=False)) :] for text, (start, _) in zip(until, tokens.spans, strict=True)]


def dialogue(prompts: list[str], answers: list[str], system: str | None = None) -> Conversation:
    messages = [] if system is None else [{"role": "system", "content": system}]
    for prompt, answer in zip(prompts, answers, strict=True):
        messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return Conversation(row=ROW, messages=messages, tools=None)


@pytest.mark.parametrize("index", range(len(FAMILIES)), ids=[family.name for family in FAMILIES])
@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(turns=st.lists(st.tuples(CONTENT, CONTENT), min_size=1, max_size=4), system=st.one_of(st.none(), CONTENT))
def test_supervised_tokens_are_the_answers(index: int, turns: list[tuple[str, str]], system: str | None) -> None:
    family = FAMILIES[index]
    renderer, aligner, backend = made(index)
    answers = [answer for _, answer in turns]
    conversation = dialogue([prompt for prompt, _ in turns], answers, system if family.takes_system else None)
    (tokens,) = aligner.encode([renderer.render(conversation)])
    assert isinstance(tokens, Tokens), str(tokens)
    expected = [family.answer(answer) for answer in answers]
    expected[-1] += family.after_last
    found = decoded(backend, tokens)
    assert found == expected or found == [unicodedata.normalize("NFC", text) for text in expected]
    assert tokens.supervised == sum(end - start for start, end in tokens.spans)


@pytest.mark.parametrize("index", range(len(FAMILIES)), ids=[family.name for family in FAMILIES])
def test_ordinary_dialogues_are_never_refused(index: int) -> None:
    renderer, aligner, backend = made(index)
    answers = ["Blue.", "No, 12 of them: a, b.", "\n\nWith new lines\n", " and spaces", ""]
    (tokens,) = aligner.encode([renderer.render(dialogue(["Name a colour. ", "Why?\n", "x", "y:", ""], answers))])
    assert isinstance(tokens, Tokens)
    assert decoded(backend, tokens) == [FAMILIES[index].answer(answer) for answer in answers[:-1]] + [FAMILIES[index].answer("") + FAMILIES[index].after_last]


def test_only_rows_that_need_it_are_tokenised_apart() -> None:
    """Otherwise the ids are those of the whole text, so later turns see what generation would see."""
    renderer, aligner, backend = made([family.name for family in FAMILIES].index("llama3"))
    rendered = renderer.render(dialogue(["a"], ["Hello"]))
    (tokens,) = aligner.encode([rendered])
    assert isinstance(tokens, Tokens)
    assert tokens.ids.tolist() == backend.encode(rendered.text, add_special_tokens=False).ids


def test_answer_that_begins_with_new_lines_is_tokenised_apart() -> None:
    renderer, aligner, backend = made(0)
    rendered = renderer.render(dialogue(["a"], ["\n\nHello"]))
    (tokens,) = aligner.encode([rendered])
    assert isinstance(tokens, Tokens)
    start = rendered.spans[0][0]
    prompt = backend.encode(rendered.text[:start], add_special_tokens=False).ids
    assert tokens.ids.tolist()[: len(prompt)] == prompt
    assert tokens.ids.tolist() != backend.encode(rendered.text, add_special_tokens=False).ids


def test_end_token_counts_though_it_pads() -> None:
    """D11: labels come from positions in the text, so pad = eos hides nothing. Answers of 3 and 5 tokens plus end."""
    backend = byte_level(specials=IM)
    tokenizer = wrap(backend, template=None, eos="<|im_end|>", pad="<|im_end|>")
    rows = [TextPair(row=ROW, prompt="1", completion=completion) for completion in ("123", "12345")]
    supervised = [tokens.supervised for tokens in tokenise_with(tokenizer)(rows) if isinstance(tokens, Tokens)]
    assert supervised == [4, 6]


def test_one_beginning_of_text() -> None:
    """D13: a template that writes it, and a tokenizer that adds it."""
    tokenizer = wrap(byte_level(specials=HEADER, bos=HEADER[0]), template=LLAMA3, eos="<|eot_id|>", bos=HEADER[0])
    tokenise, begin = tokenise_with(tokenizer), tokenizer.bos_token_id
    pairs = [TextPair(row=ROW, prompt=prompt, completion="b") for prompt in ("a", HEADER[0] + "a", "")]
    for tokens in tokenise([dialogue(["a"], ["b"]), *pairs]):
        assert isinstance(tokens, Tokens)
        assert tokens.ids.tolist().count(begin) == 1
        assert tokens.ids[0] == begin
    (twice,) = tokenise([TextPair(row=ROW, prompt=HEADER[0] * 2, completion="b")])
    assert isinstance(twice, DataError)
    assert "two beginning-of-text tokens" in str(twice)


@pytest.mark.parametrize("completion", ["b", "b<|im_end|>"])
def test_pair_ends_once(completion: str) -> None:
    backend = byte_level(specials=IM)
    tokenise = tokenise_with(wrap(backend, template=None, eos="<|im_end|>"))
    (tokens,) = tokenise([TextPair(row=ROW, prompt="a\n", completion=completion)])
    assert isinstance(tokens, Tokens)
    assert decoded(backend, tokens) == ["b<|im_end|>"]


def test_pair_is_tokenised_as_prompt_and_completion() -> None:
    backend = byte_level(specials=IM)
    tokenise = tokenise_with(wrap(backend, template=None, eos="<|im_end|>"))
    (tokens,) = tokenise([TextPair(row=ROW, prompt="Hel", completion="lo")])
    assert isinstance(tokens, Tokens)
    ends = backend.encode("<|im_end|>").ids
    assert tokens.ids.tolist() == backend.encode("Hel").ids + backend.encode("lo").ids + ends


def test_pair_where_tokenising_apart_would_add_a_space() -> None:
    """A SentencePiece-like tokenizer puts a space before each text; the row is then tokenised whole, or refused."""
    backend = sentencepiece_like(specials=("<s>", "</s>"), bos="<s>")
    tokenise = tokenise_with(wrap(backend, template=None, eos="</s>", bos="<s>"))
    clean, crossing = tokenise([TextPair(row=ROW, prompt=prompt, completion=text) for prompt, text in (("Please send", " Anna Berg"), ("Ans", "wer it"))])
    assert isinstance(clean, Tokens)
    assert decoded(backend, clean) == [" Anna Berg</s>"]
    assert isinstance(crossing, DataError)
    assert "joins the prompt and the answer in one token" in str(crossing)


def test_tokens_that_reach_over_words() -> None:
    tokenizer = wrap(sentencepiece_like(specials=("<s>", "</s>"), bos="<s>", words_apart=False), template=MISTRAL, eos="</s>", bos="<s>")
    (result,) = Aligner(tokenizer).encode([ChatRenderer(tokenizer).render(dialogue(["x"], ["x"]))])
    assert isinstance(result, DataError)


def test_no_end_token() -> None:
    (result,) = tokenise_with(wrap(byte_level(specials=IM), template=None, eos=None))([TextPair(row=ROW, prompt="a", completion="b")])
    assert "no eos_token" in str(result)


def test_count_after_the_shift() -> None:
    assert count_supervised([(0, 3), (5, 6)]) == 3
    assert count_supervised([(0, 1)]) == 0
    assert count_supervised([]) == 0
