"""On every row of the shared data the supervised tokens, decoded, are exactly the assistant's texts and turn ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from ftcore.data.formats.record_kinds import Conversation, TextPair
from ftcore.data.formats.record_maker import to_records
from ftcore.data.reading.find import find_files
from ftcore.data.reading.reader import read_chunks
from ftcore.data.reading.rows import Row
from ftcore.data.templates.aligner import Aligner
from ftcore.data.templates.renderer import ChatRenderer
from ftcore.data.tokens import Tokens
from ftcore.spec.sections import DataSet
from tests.unit.base_models import SMOLLM2, TINY_LLAMA, loaded, shared_data, user_cache
from tests.unit.made_tokenizers import FAMILIES, IM, TOOLS, byte_level, wrap

END = "<|im_end|>"
ROLES = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}


def supervised_texts(backend: Any, results: Sequence[Any]) -> list[list[str]]:
    """Decoded supervised ranges of each row; byte-level tokens decode alike anywhere."""
    assert all(isinstance(tokens, Tokens) for tokens in results), [str(error) for error in results if not isinstance(error, Tokens)][:3]
    return [[backend.decode(tokens.ids[start:end].tolist(), skip_special_tokens=False) for start, end in tokens.spans] for tokens in results]


def conversations(name: str) -> list[Conversation]:
    """ShareGPT-like dialogues as messages."""
    rows = json.loads(shared_data(name).read_text(encoding="utf-8"))
    return [
        Conversation(
            row=Row(number=number, line=None, value={}),
            messages=[{"role": ROLES[turn["from"]], "content": turn["value"]} for turn in row["conversations"]],
            tools=None,
        )
        for number, row in enumerate(rows, start=1)
    ]


@pytest.mark.parametrize("model", [SMOLLM2, TINY_LLAMA])
@pytest.mark.parametrize("name", ["gsm8k_train.jsonl", "gsm8k_test.jsonl"])
def test_gsm8k_as_prompt_and_completion(model: str, name: str) -> None:
    path = str(shared_data(name))
    tokenise, backend = loaded(model)
    dataset = DataSet(path=path, format="prompt_completion", columns={"prompt": "question", "completion": "answer"})
    rows = [row for chunk in read_chunks(find_files(dataset, "data.train", purpose="train", cache_dir=user_cache())) for row in chunk.rows()]
    records = to_records([row for row in rows if isinstance(row, Row)], dataset, "data.train")
    results = tokenise(records)
    assert len(records) == {"gsm8k_train.jsonl": 7473, "gsm8k_test.jsonl": 1319}[name]
    assert all(isinstance(record, TextPair) for record in records)
    assert supervised_texts(backend, results) == [[record.completion + END] for record in records if isinstance(record, TextPair)]
    whole = [backend.decode(tokens.ids.tolist(), skip_special_tokens=False) for tokens in results if isinstance(tokens, Tokens)]
    assert whole == [record.prompt + record.completion + END for record in records if isinstance(record, TextPair)]


@pytest.mark.parametrize("model", [SMOLLM2, TINY_LLAMA])
@pytest.mark.parametrize(("name", "rows", "answers"), [("sharegpt_dummy_conversation.json", 500, 1000), ("glaive_toolcall_en_demo.json", 300, 957)])
def test_dialogues_as_messages(model: str, name: str, rows: int, answers: int) -> None:
    records = conversations(name)
    tokenise, backend = loaded(model)
    found = supervised_texts(backend, tokenise(records))
    assert found == [[message["content"] + END for message in record.messages if message["role"] == "assistant"] for record in records]
    assert (len(found), sum(len(texts) for texts in found)) == (rows, answers)


def test_tool_calls_as_messages() -> None:
    """Every Glaive row with its tools and structured calls, through a template that takes both."""
    tokenizer = wrap(byte_level(specials=IM), template=TOOLS, eos=END)
    records, expected = [], []
    for number, row in enumerate(json.loads(shared_data("glaive_toolcall_en_demo.json").read_text(encoding="utf-8")), start=1):
        messages = [_message(turn) for turn in row["conversations"]]
        value = {"messages": messages, "tools": row["tools"]}
        records += to_records([Row(number=number, line=None, value=value)], DataSet(path="x"), "data.train")
        expected.append([_answer(message) for message in messages if message["role"] == "assistant"])
    renderer = ChatRenderer(tokenizer)
    results = Aligner(tokenizer).encode([renderer.render(record) for record in records if isinstance(record, Conversation)])
    assert supervised_texts(tokenizer.backend_tokenizer, results) == expected


def _message(turn: dict[str, str]) -> dict[str, Any]:
    if turn["from"] != "function_call":
        return {"role": ROLES[turn["from"]], "content": turn["value"]}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": json.loads(turn["value"])}]}


def _answer(message: dict[str, Any]) -> str:
    if message["content"] is not None:
        return str(message["content"]) + END
    return f"<tool_call>{json.dumps(message['tool_calls'][0]['function'], ensure_ascii=False)}</tool_call>{END}"


@pytest.mark.parametrize("name", [family.name for family in FAMILIES])
def test_sharegpt_with_other_templates(name: str) -> None:
    family = next(family for family in FAMILIES if family.name == name)
    tokenizer = family.make()
    renderer, records = ChatRenderer(tokenizer), conversations("sharegpt_dummy_conversation.json")
    backend = tokenizer.backend_tokenizer
    for record, tokens in zip(records, Aligner(tokenizer).encode([renderer.render(record) for record in records]), strict=True):
        assert isinstance(tokens, Tokens)
        ids = tokens.ids.tolist()
        until = [backend.decode(ids[:end], skip_special_tokens=False) for _, end in tokens.spans]
        found = [text[len(backend.decode(ids[:start], skip_special_tokens=False)) :] for text, (start, _) in zip(until, tokens.spans, strict=True)]
        expected = [family.answer(message["content"]) for message in record.messages if message["role"] == "assistant"]
        assert found == [*expected[:-1], expected[-1] + family.after_last]
