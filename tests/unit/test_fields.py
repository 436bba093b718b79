"""Fields of a row: the columns mapping, missing fields, wrong types, each with its row."""

from __future__ import annotations

from typing import Any

import pytest

from ftcore.data.formats.record_kinds import Conversation, TextPair
from ftcore.data.formats.record_maker import to_records
from ftcore.data.reading.rows import Row
from ftcore.spec.errors import DataError
from ftcore.spec.sections import DataSet

USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "hello"}
WRAPPED = {"type": "function", "function": {"name": "f"}}


def records(*values: dict[str, Any], form: str = "messages", **columns: str) -> list[Any]:
    rows = [Row(number=number, line=number + 10, value=value) for number, value in enumerate(values, start=1)]
    return to_records(rows, DataSet(path="f.jsonl", format=form, columns=columns), "data.train")


def refused(*values: dict[str, Any], form: str = "messages", **columns: str) -> str:
    with pytest.raises(DataError) as caught:
        records(*values, form=form, **columns)
    return str(caught.value)


def test_columns_name_the_files_own_fields() -> None:
    (pair,) = records({"question": "q", "answer": "a", "id": 3}, form="prompt_completion", prompt="question", completion="answer")
    assert isinstance(pair, TextPair)
    assert (pair.prompt, pair.completion) == ("q", "a")
    (chat,) = records({"turns": [USER, ANSWER], "functions": [{"name": "f"}]}, messages="turns", tools="functions")
    assert isinstance(chat, Conversation)
    assert chat.tools == [WRAPPED]
    assert chat.roles == "user assistant"


def test_columns_that_the_format_has_not() -> None:
    text = refused({"messages": [USER]}, question="prompt")
    assert "data.train.columns: 'question' is no field of the format messages" in text


def test_missing_field_names_the_fields_seen() -> None:
    text = refused({"messages": [USER]}, {"conversations": [], "id": 1})
    assert "f.jsonl:12: row 2: no field 'messages'; the row's fields are: conversations, id" in text
    assert "data.train.columns: {messages: NAME}" in text
    assert "fields are: none" in refused({})


def test_message_lists_as_prompt_and_completion() -> None:
    (chat,) = records({"prompt": [USER, ANSWER, USER], "completion": [ANSWER]}, form="prompt_completion")
    assert isinstance(chat, Conversation)
    assert chat.supervised_from == 3
    assert chat.messages == [USER, ANSWER, USER, ANSWER]


@pytest.mark.parametrize("value", [None, "", "  ", [], "[]"])
def test_no_tools(value: Any) -> None:
    assert records({"messages": [USER], "tools": value})[0].tools is None


def test_tools_as_json_text() -> None:
    assert records({"messages": [USER], "tools": '[{"name": "f"}]'})[0].tools == [WRAPPED]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"messages": "hi"}, "messages is a string"),
        ({"messages": []}, "messages is an empty list"),
        ({"messages": {"a": 1}}, "messages is an object"),
        ({"messages": ["hi"]}, "messages[0] is a string"),
        ({"messages": [{"from": "human", "value": "x"}]}, "messages[0] has no role, only from, value"),
        ({"messages": [{}]}, "no role, only nothing"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "role 'narrator'"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content is a number"),
        ({"messages": [USER, {"role": "assistant", "content": [{"type": "text"}]}]}, "messages[1].content[0] has no text, only type"),
        ({"messages": [{"role": "assistant", "content": None}]}, "neither content nor tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": "f()"}]}, "tool_calls is a string"),
        ({"messages": [{"role": "user", "content": "a\ud83d"}]}, "half of a surrogate pair (\\ud83d)"),
        ({"messages": [USER], "tools": "{"}, "tools is text that is not JSON"),
        ({"messages": [USER], "tools": {"a": "f"}}, "tools is an object"),
        ({"messages": [USER], "tools": ["f"]}, "tools[0] is a string"),
    ],
)
def test_wrong_types_in_messages(value: dict[str, Any], reason: str) -> None:
    text = refused({"messages": [USER, ANSWER]}, value)
    assert text.startswith("f.jsonl:12: row 2: ")
    assert reason in text


@pytest.mark.parametrize(
    ("prompt", "completion", "reason"), [("a", None, "completion is null"), (True, "b", "prompt is true or false"), ("a", [ANSWER], "prompt is a string")]
)
def test_wrong_types_in_pairs(prompt: Any, completion: Any, reason: str) -> None:
    assert reason in refused({"prompt": prompt, "completion": completion}, form="prompt_completion")


def test_all_mistakes_at_once() -> None:
    text = refused({"messages": [{"role": "x"}, {"role": "user", "content": 1}]}, {"messages": []}, {"messages": [USER]})
    assert text.count("row 1:") == 2
    assert text.count("row 2:") == 1
