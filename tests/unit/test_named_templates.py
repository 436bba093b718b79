"""The templates that ship here: their texts, their masks with and without markers, and the tokenizers they go with (cases D06, D08, D11, D13, D15, D17)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftcore.data.templates.chosen import choose_template, turn_end_id
from ftcore.data.templates.named import template_digest, template_text
from ftcore.data.templates.renderer import ChatRenderer
from ftcore.data.templates.tokenise import Tokenise, tokenise_with
from ftcore.data.tokenizer import load_tokenizer
from ftcore.data.tokens import Tokens
from ftcore.spec.errors import DataError, SpecError
from ftcore.spec.names import CHAT_TEMPLATES
from tests.unit.chats import TOOL, call, chat, learned
from tests.unit.made_tokenizers import HEADER, IM, PHI, TURN, byte_level, sentencepiece_like, wrap
from tests.unit.test_spans import CONTENT

MAKERS: dict[str, Callable[[], Any]] = {
    "chatml": lambda: wrap(byte_level(specials=IM), template=None, eos="<|im_end|>", pad="<|im_end|>"),
    "qwen2.5": lambda: wrap(byte_level(specials=(*IM, "<tool_call>", "</tool_call>"), nfc=True), template=None, eos="<|im_end|>", pad="<|endoftext|>"),
    "qwen3": lambda: wrap(byte_level(specials=IM, nfc=True), template=None, eos="<|im_end|>", pad="<|endoftext|>"),
    "llama3": lambda: wrap(byte_level(specials=HEADER, bos=HEADER[0]), template=None, eos="<|eot_id|>", bos=HEADER[0]),
    "mistral": lambda: wrap(sentencepiece_like(specials=("<s>", "</s>"), bos="<s>"), template=None, eos="</s>", bos="<s>", pad="</s>"),
    "gemma": lambda: wrap(sentencepiece_like(specials=TURN, bos="<bos>"), template=None, eos="<eos>", bos="<bos>"),
    "phi3": lambda: wrap(byte_level(specials=PHI, rstrip=True), template=None, eos="<|endoftext|>"),
}
ENDS = {"llama3": "<|eot_id|>", "mistral": "</s>", "gemma": "<end_of_turn>", "phi3": "<|end|>"}
MARKERS = re.compile(r"\{%-? (end)?generation %\}")
WITH_TOOLS = ("chatml", "llama3", "mistral", "qwen2.5", "qwen3")


@cache
def made(name: str, *, marked: bool = True) -> tuple[ChatRenderer, Tokenise, Any]:
    tokenizer = MAKERS[name]()
    choose_template(tokenizer, name)
    if not marked:
        tokenizer.chat_template = MARKERS.sub("", tokenizer.chat_template)
    return ChatRenderer(tokenizer), tokenise_with(tokenizer), tokenizer


def rendered_answer(name: str, text: str, *, last: bool) -> str:
    """What a family's template makes of an answer."""
    if name in ("llama3", "gemma", "mistral"):
        text = text.strip()
    if name == "mistral":
        text = " " + text
    if name == "qwen3" and last:
        text = "<think>\n\n</think>\n\n" + text.lstrip("\n")
    return text + ENDS.get(name, "<|im_end|>")


def test_every_name_of_the_spec_ships() -> None:
    assert set(MAKERS) == set(CHAT_TEMPLATES)
    assert len({template_digest(name) for name in ("", *CHAT_TEMPLATES)}) == 8
    assert template_text("") is None


@pytest.mark.parametrize("name", MAKERS)
def test_text_and_answers(name: str) -> None:
    renderer, tokenise, tokenizer = made(name)
    row = chat("s Be kind.", "u Hi.", "a Hello!", "u Bye.", "a See you.")
    expected = [rendered_answer(name, "Hello!", last=False), rendered_answer(name, "See you.", last=True)]
    assert [renderer.render(row).text[slice(*span)] for span in renderer.render(row).spans] == expected
    assert learned(tokenizer.backend_tokenizer, tokenise([row])[0]) == expected
    assert renderer.render(row).text == tokenizer.apply_chat_template(row.messages, tokenize=False)


TEXTS = {
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n",
    "qwen3": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nA<|im_end|>\n",
    "llama3": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>",
    "mistral": "<s>[INST] S\n\nU [/INST] A</s>",
    "gemma": "<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n",
    "phi3": "<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\nA<|end|>\n",
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_families_own_text(name: str) -> None:
    expected = TEXTS.get(name, TEXTS["chatml"])
    assert made(name)[0].render(chat("s S", "u U", "a A")).text == expected


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(turns=st.lists(st.tuples(CONTENT, CONTENT), min_size=1, max_size=3), system=st.one_of(st.none(), CONTENT))
def test_markers_and_rendering_give_the_same_mask(name: str, turns: list[tuple[str, str]], system: str | None) -> None:
    """D15, D17: odd unicode, white space, nothing at all; either way the answers, or the row is refused."""
    head = [] if system is None else [f"s {system}"]
    row = chat(*head, *(text for question, answer in turns for text in (f"u {question}", f"a {answer}")))
    results = [made(name, marked=marked)[1]([row])[0] for marked in (True, False)]
    if name == "qwen3" and any(isinstance(result, DataError) for result in results):
        assert not all(answer for _, answer in turns[:-1])  # an earlier answer without text leaves nothing to find it by
        return
    assert isinstance(results[0], Tokens) and isinstance(results[1], Tokens)
    assert results[0].spans == results[1].spans
    assert results[0].ids.tolist() == results[1].ids.tolist()
    backend = made(name)[2].backend_tokenizer
    expected = [rendered_answer(name, answer, last=number == len(turns)) for number, (_, answer) in enumerate(turns, start=1)]
    normalizer = backend.normalizer
    if name.startswith("qwen"):
        expected = [normalizer.normalize_str(text) for text in expected]
    assert learned(backend, results[0]) == expected


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_tools_and_calls(name: str) -> None:
    """D06, D08: a row's own tools are in its prompt, a null argument stays, and the call is learned."""
    renderer, tokenise, tokenizer = made(name)
    other = {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {"b": {"type": "integer"}}}}}
    rows = [
        chat("u go", call("f", a=None), "t done", "a ok", tools=[TOOL]),
        chat("u go", call("g", b=1), "t done", "a ok", tools=[other]),
    ]
    texts = [renderer.render(row).text for row in rows]
    assert '"a"' in texts[0] and '"b"' not in texts[0] and '"b"' in texts[1] and '"a"' not in texts[1]
    first, second = (learned(tokenizer.backend_tokenizer, tokens) for tokens in tokenise(rows))
    key = "parameters" if name == "llama3" else "arguments"
    assert f'{{"name": "f", "{key}": {{"a": null}}}}' in first[0]
    assert f'{{"name": "g", "{key}": {{"b": 1}}}}' in second[0]
    assert [texts[1] for texts in (first, second)] == [rendered_answer(name, "ok", last=True)] * 2
    for marked in (True, False):
        spans = [made(name, marked=marked)[0].render(row).spans for row in rows]
        assert spans == [renderer.render(row).spans for row in rows]


@pytest.mark.parametrize("name", ["gemma", "phi3"])
def test_tools_of_a_family_without_tools(name: str) -> None:
    """D08."""
    with pytest.raises(DataError, match="has tools, and the chat template ignores them"):
        made(name)[0].render(chat("u go", "a ok", tools=[TOOL]))
    with pytest.raises(DataError, match="has tool_calls, and the chat template ignores them"):
        made(name)[0].render(chat("u go", call(), "t done", "a ok"))


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("llama3", chat("u go", {**call(), "tool_calls": call()["tool_calls"] * 2}, "t done", "a ok", tools=[TOOL]), "one tool call a message"),
        ("mistral", chat("u a", "u b", "a c"), "roles must alternate"),
        ("mistral", chat("u a", "a b", "a c"), "roles must alternate"),
        ("mistral", chat("u a", "a b", "s c", "u d", "a e"), "a system message stands first"),
        ("gemma", chat("u a", "u b", "a c"), "roles must alternate"),
        ("phi3", chat("u a", "t b", "a c"), "no role tool"),
    ],
)
def test_rows_that_a_family_has_no_form_for(name: str, row: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        made(name)[0].render(row)


def test_thinking_of_earlier_answers_is_dropped() -> None:
    """Earlier answers are learned as they are shown, the last one with its reasoning."""
    think = "<think>\nbecause {0}\n</think>\n\nanswer {0}"
    row = chat("u a", "a " + think.format(1), "u b", "a " + think.format(2))
    for marked in (True, False):
        renderer, tokenise, tokenizer = made("qwen3", marked=marked)
        assert learned(tokenizer.backend_tokenizer, tokenise([row])[0]) == ["answer 1<|im_end|>", think.format(2) + "<|im_end|>"]
        assert "because 1" not in renderer.render(row).text
        apart = {"role": "assistant", "content": "answer", "reasoning_content": "because"}
        assert learned(tokenizer.backend_tokenizer, tokenise([chat("u a", apart)])[0]) == ["<think>\nbecause\n</think>\n\nanswer<|im_end|>"]


@pytest.mark.parametrize("name", MAKERS)
def test_generation_stops_on_what_is_learned(name: str) -> None:
    """D11: the end is one token, learned after each answer, though it pads too."""
    _, tokenise, tokenizer = made(name)
    end = turn_end_id(tokenizer)
    assert tokenizer.convert_ids_to_tokens(end) == ENDS.get(name, "<|im_end|>")
    (tokens,) = tokenise([chat("u a", "a b", "u c", "a d")])
    assert isinstance(tokens, Tokens)
    assert [int(tokens.ids[last - 1]) for _, last in tokens.spans] == [end, end]


@pytest.mark.parametrize("name", MAKERS)
def test_tokenizer_without_the_turn_end(name: str) -> None:
    tokenizer = wrap(byte_level(specials=("<|other|>",)), template=None, eos=None)
    tokenizer.name_or_path = "some/model"
    with pytest.raises(SpecError, match=rf"the template {re.escape(name)} ends a turn with .*, which is no single token of the tokenizer some/model"):
        choose_template(tokenizer, name)


def test_refused_rows_name_the_template() -> None:
    """D15: which template it was."""
    row = chat("u a", "u b", "a c")
    tokenizer = made("gemma")[2]
    (named,), (own,) = tokenise_with(tokenizer, template="gemma")([row]), tokenise_with(tokenizer)([row])
    assert "(roles: user user assistant) (template: gemma)" in str(named)
    assert "(template: the tokenizer's own)" in str(own)


def test_template_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}", encoding="utf-8"
    )
    wrap(byte_level(specials=("<s>", "</s>")), template=None, eos="</s>").save_pretrained(tmp_path / "model")
    tokenizer = load_tokenizer(str(tmp_path / "model"), chat_template=str(file))
    assert learned(tokenizer.backend_tokenizer, tokenise_with(tokenizer)([chat("u a", "a b")])[0]) == ["b</s>"]
    before = template_digest(str(file))
    file.write_text("{% for", encoding="utf-8")
    assert template_digest(str(file)) != before
    with pytest.raises(SpecError, match=r"own.jinja can't be read: line 1: "):
        load_tokenizer(str(tmp_path / "model"), chat_template=str(file))
    file.write_text("{{ 10**100000 }}", encoding="utf-8")
    with pytest.raises(SpecError, match=r"own.jinja can't be read: ValueError: Exceeds the limit"):
        load_tokenizer(str(tmp_path / "model"), chat_template=str(file))


@pytest.mark.parametrize(("written", "reason"), [(None, "No such file"), (b"\xff", "can't decode"), (b" \n", "is empty")])
def test_template_that_is_none(written: bytes | None, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    if written is not None:
        file.write_bytes(written)
    with pytest.raises(SpecError, match=reason):
        template_text(str(file))
