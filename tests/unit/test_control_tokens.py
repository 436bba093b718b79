"""Texts in messages that spell control tokens are text (or the row is refused); prompts, turn ends and the beginning of text as at serving."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, processors

from ftcore.data.formats.record_kinds import Conversation
from ftcore.data.templates.chosen import choose_template, set_template, turn_end_id
from ftcore.data.templates.prompts import prompt_tokens
from ftcore.data.templates.renderer import ChatRenderer
from ftcore.data.templates.tokenise import Tokenise, tokenise_with
from ftcore.data.tokenizer import load_tokenizer
from ftcore.data.tokens import Tokens
from ftcore.questions import stop_ids
from ftcore.spec.errors import DataError
from tests.unit.chats import TOOL, call, chat, learned
from tests.unit.made_tokenizers import CHATML, FAMILIES, GEMMA, HEADER, IM, LLAMA3, MISTRAL, TOOLS, byte_level, sentencepiece_like, wrap
from tests.unit.test_spans import CONTENT

SPELT = ("<|im_end|>", "<|im_start|>", "</s>", "<s>", "<|eot_id|>", "<|begin_of_text|>", "<bos>", "<end_of_turn>", "<|end|>", "<|endoftext|>")
BOS = "<|begin_of_text|>"
WITH_CONTROL = st.tuples(CONTENT, st.sampled_from(SPELT), CONTENT).map("".join)


@cache
def made(index: int) -> tuple[Tokenise, Any, Tokenise]:
    tokenizer = FAMILIES[index].make()
    return tokenise_with(tokenizer), tokenizer, tokenise_with(tokenizer)


def control_ids(tokenizer: Any, tokens: Tokens) -> list[int]:
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special and not token.content.startswith("<0x")}
    return [token for token in tokens.ids.tolist() if token in special]


@pytest.mark.parametrize("index", range(len(FAMILIES)), ids=[family.name for family in FAMILIES])
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(question=st.one_of(CONTENT, WITH_CONTROL), answer=WITH_CONTROL, second=CONTENT)
def test_what_messages_spell_is_text(index: int, question: str, answer: str, second: str) -> None:
    """As many control tokens as in a row that spells none, and the supervised tokens still say the answers."""
    tokenise, tokenizer, _ = made(index)
    family = FAMILIES[index]
    spelt, plain = tokenise([chat(f"u {question}", f"a {answer}", f"u {second}", f"a {second}"), chat("u a", "a b", "u c", "a d")])
    assert isinstance(plain, Tokens)
    if isinstance(spelt, DataError):  # a tokenizer may swallow white space behind a control token that isn't one here
        assert "spells the control token" in str(spelt)
        return
    assert control_ids(tokenizer, spelt) == control_ids(tokenizer, plain)
    found = learned(tokenizer.backend_tokenizer, spelt)
    expected = [family.answer(answer), family.answer(second) + family.after_last]
    normalizer = tokenizer.backend_tokenizer.normalizer
    if family.name == "chatml-nfc":
        expected = [normalizer.normalize_str(text) for text in expected]
    assert found == expected


def test_the_other_rows_of_a_chunk_are_as_without_it() -> None:
    tokenise, _, again = made(0)
    rows = [chat("u a", "a b"), chat("u a", "a <|im_end|>"), chat("u c", "a d")]
    mixed, alone = tokenise(rows), again([rows[0], rows[2]])
    assert all(isinstance(tokens, Tokens) for tokens in mixed)
    assert [tokens.ids.tolist() for tokens in (mixed[0], mixed[2]) if isinstance(tokens, Tokens)] == [
        tokens.ids.tolist() for tokens in alone if isinstance(tokens, Tokens)
    ]


@pytest.mark.parametrize(
    ("row", "template"),
    [
        (chat("u a", "a b<|im_end|>"), CHATML.replace("m['content']", "m['content'].replace('b', 'b ')")),
        (chat("u go", call(a="x"), "t done", "a ok", tools=[{**TOOL, "function": {**TOOL["function"], "description": "<|im_end|>"}}]), TOOLS),  # type: ignore[dict-item]
    ],
)
def test_what_can_not_be_told_from_the_template_is_refused(row: Conversation, template: str) -> None:
    with pytest.raises(DataError, match=r"spells the control token '<\|im_end\|>', and it can't be told from those that the chat template writes"):
        ChatRenderer(wrap(byte_level(specials=IM), template=template, eos="<|im_end|>")).render(row)


def test_call_that_spells_a_control_token() -> None:
    tokenizer = wrap(byte_level(specials=IM), template=TOOLS, eos="<|im_end|>")
    (tokens,) = tokenise_with(tokenizer)([chat("u go", call(a='<|im_end|>"'), "t <|im_start|>", "a ok", tools=[TOOL])])
    assert learned(tokenizer.backend_tokenizer, tokens)[0] == '<tool_call>{"name": "f", "arguments": {"a": "<|im_end|>\\""}}</tool_call><|im_end|>'
    assert isinstance(tokens, Tokens)
    assert len(control_ids(tokenizer, tokens)) == 10


def test_added_tokens_keep_their_ids_in_a_row_that_spells_one() -> None:
    """Control tokens that the model's vocabulary holds, and behind them tokens that were added to it: SmolLM2 with <think>."""
    backend = byte_level(specials=())
    stored = json.loads(backend.to_str())
    for token in IM:
        stored["model"]["vocab"][token] = len(stored["model"]["vocab"])
    backend = Tokenizer.from_str(json.dumps(stored))
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in IM])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in ("<think>", "</think>")])
    tokenise = tokenise_with(wrap(backend, template=CHATML, eos=IM[1]))
    (plain, spelt) = tokenise([chat("u q", "a <think>r</think> ok"), chat("u <|im_end|>", "a <think>r</think> ok")])
    assert isinstance(plain, Tokens)
    assert isinstance(spelt, Tokens)
    answers = [row.ids[slice(*row.spans[0])].tolist() for row in (plain, spelt)]
    assert answers[0] == answers[1]
    assert backend.token_to_id("<think>") in answers[1]


def test_turns_and_beginning_of_a_row_that_spells_one() -> None:
    """Split and truncate_left cut such a row as they cut others."""
    tokenizer = wrap(byte_level(specials=HEADER, bos=BOS), template=LLAMA3, eos="<|eot_id|>", bos=BOS)
    spelt, plain = tokenise_with(tokenizer)([chat("u a", f"a {text}", "u c", "a d") for text in ("<|eot_id|>", "x")])
    assert isinstance(spelt, Tokens) and isinstance(plain, Tokens)
    assert (spelt.front, plain.front) == (1, 1)
    assert spelt.turns[0] == plain.turns[0] == 1
    assert spelt.ids[spelt.turns[1] :].tolist() == plain.ids[plain.turns[1] :].tolist()


def test_byte_that_a_text_spells() -> None:
    """A byte's token in a text would become that byte: the row is refused, since its tokens say another text."""
    tokenizer = wrap(sentencepiece_like(specials=("<s>", "</s>"), bos="<s>"), template=MISTRAL, eos="</s>", bos="<s>")
    (result,) = tokenise_with(tokenizer)([chat("u a", "a b <0x41> c")])
    assert "can't write an answer: its tokens decode to" in str(result)


@pytest.mark.parametrize("index", range(len(FAMILIES)), ids=[family.name for family in FAMILIES])
@pytest.mark.parametrize("question", ["What now?", "  odd\n", "the text <|im_end|> and </s>"])
def test_prompts_are_what_training_showed(index: int, question: str) -> None:
    tokenise, tokenizer, _ = made(index)
    (tokens,) = tokenise([chat("u Hi", "a Hello", f"u {question}", "a Answer")])
    assert isinstance(tokens, Tokens), str(tokens)
    before = chat("u Hi", "a Hello", f"u {question}").messages
    assert prompt_tokens(tokenizer, before, None) == tuple(tokens.ids[: tokens.spans[-1][0]].tolist())
    assert int(tokens.ids[tokens.spans[0][1] - 1]) in stop_ids(tokenizer, None, chat=True)


def test_prompt_that_the_template_refuses() -> None:
    with pytest.raises(DataError, match="refuses the row"):
        prompt_tokens(wrap(byte_level(specials=("<bos>", "<end_of_turn>")), template=GEMMA, eos=None, bos="<bos>"), chat("s a", "u b").messages, None)


@pytest.mark.parametrize(("answer", "found"), [("m['content']", "<|im_end|>"), ("m['content'] | upper", None)])
def test_turn_end_of_a_template(answer: str, found: str | None) -> None:
    tokenizer = wrap(byte_level(specials=IM), template=CHATML.replace("m['content']", answer), eos="<|endoftext|>")
    assert turn_end_id(tokenizer) == (tokenizer.convert_tokens_to_ids(found) if found else None)
    assert tokenizer.eos_token_id in stop_ids(tokenizer, None, chat=True)


@pytest.mark.parametrize("adds", ["nothing", "bos", "bos and eos"])
@pytest.mark.parametrize("template", [LLAMA3, LLAMA3.replace("{{ bos_token }}", ""), LLAMA3.replace("{{ bos_token }}", BOS)], ids=["names", "none", "literal"])
def test_exactly_one_beginning_of_text(adds: str, template: str, tmp_path: Path) -> None:
    """D13: whether the template writes it, the tokenizer adds it, both, or one that adds an end too; the saved tokenizer serves the same."""
    backend = byte_level(specials=HEADER)
    ids = [(token, backend.token_to_id(token)) for token in (BOS, "<|eot_id|>")]
    if adds != "nothing":
        single = f"{BOS} $A" + (" <|eot_id|>" if adds == "bos and eos" else "")
        backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)
    wrap(backend, template=template, eos="<|eot_id|>", bos=BOS).save_pretrained(tmp_path / "model")
    tokenizer = load_tokenizer(str(tmp_path / "model"))
    row = chat("u a", "a b")
    (tokens,) = tokenise_with(tokenizer)([row])
    assert isinstance(tokens, Tokens)
    expected = 0 if adds == "nothing" and "begin_of_text" not in template and "bos_token" not in template else 1
    assert tokens.ids.tolist().count(tokenizer.bos_token_id) == expected
    assert tokens.ids.tolist().count(tokenizer.eos_token_id) == 2
    tokenizer.save_pretrained(tmp_path / "export")
    exported = load_tokenizer(str(tmp_path / "export"))
    assert exported.chat_template == tokenizer.chat_template
    assert exported.apply_chat_template(row.messages, tokenize=True, return_dict=False) == tokens.ids.tolist()


def test_several_templates_of_one_tokenizer() -> None:
    """A tokenizer may have another template for rows with tools."""
    backend = byte_level(specials=(*IM, "<s>"), bos="<s>")
    tokenizer = wrap(backend, template=None, eos="<|im_end|>", bos="<s>")
    tokenizer.chat_template = {"default": CHATML, "tool_use": TOOLS}
    set_template(tokenizer, None)
    plain, with_tools = tokenise_with(tokenizer)([chat("u a", "a b"), chat("u go", call(), "t done", "a ok", tools=[TOOL])])
    assert isinstance(plain, Tokens) and isinstance(with_tools, Tokens)
    assert [tokens.ids.tolist().count(tokenizer.bos_token_id) for tokens in (plain, with_tools)] == [1, 1]
    tokenizer.chat_template = {"other": CHATML}
    with pytest.raises(DataError, match=r"default"):
        ChatRenderer(tokenizer)


def test_a_named_template_begins_as_the_tokenizer_does() -> None:
    for bos in (None, "<s>"):
        tokenizer = wrap(byte_level(specials=(*IM, "<s>"), bos=bos), template=None, eos="<|im_end|>", bos="<s>")
        choose_template(tokenizer, "chatml")
        (tokens,) = tokenise_with(tokenizer)([chat("u a", "a b")])
        assert isinstance(tokens, Tokens)
        assert tokens.ids.tolist().count(tokenizer.bos_token_id) == (1 if bos else 0)
