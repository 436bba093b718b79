"""Tools, calls and contents of a row in the one form that templates take; own keys and nulls stay (D06)."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from ftcore.data.formats.record_kinds import Conversation
from ftcore.data.formats.record_maker import to_records
from ftcore.data.reading.rows import Row
from ftcore.spec.sections import DataSet
from tests.unit.test_fields import ANSWER, USER, records, refused

CASES = Path(__file__).resolve().parents[1] / "cases" / "data"
FULL = {
    "type": "function",
    "function": {"name": "f", "description": None, "parameters": {"properties": {"a": {"type": "string", "default": None}}}},
    "strict": None,
}


def message(**fields: Any) -> dict[str, Any]:
    (record,) = records({"messages": [USER, {"role": "assistant", **fields}]})
    assert isinstance(record, Conversation)
    return record.messages[1]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ([FULL], FULL),
        (json.dumps([FULL]), FULL),
        ([json.dumps(FULL)], FULL),
        (FULL, FULL),
        (json.dumps(FULL), FULL),
        ([FULL["function"]], {"type": "function", "function": FULL["function"]}),
        ([{"type": "function", "name": "f", "parameters": None}], {"type": "function", "function": {"name": "f", "parameters": None}}),
        ([{"function": {"name": "f"}}], {"function": {"name": "f"}}),
        ([{"name": "f", "function": None, "type": None}], {"type": "function", "function": {"name": "f", "type": None}}),
    ],
)
def test_forms_of_a_tool(given: Any, taken: dict[str, Any]) -> None:
    for field in ("tools", "functions"):
        (record,) = records({"messages": [USER, ANSWER], field: given})
        assert record.tools == [taken] and json.dumps(record.tools) == json.dumps([taken]), "keys keep their order"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (3, "tools is a number"),
        ("[", "tools is text that is not JSON"),
        ('[{"name": "f", "name": "g"}]', "the key 'name' stands twice"),
        ([3], "tools[0] is a number"),
        (["f"], "tools[0] is a string"),
        ([{"name": ""}, {"function": {}}, {"function": 3}], "tools[2] is a tool without the name of a function"),
        ([{"type": "web_search"}], "tools[0] is a tool of type 'web_search' without the name of a function"),
        ([{"name": "f", "description": "\udc00"}], "half of a surrogate pair"),
    ],
)
def test_what_is_no_tool(given: Any, reason: str) -> None:
    assert reason in refused({"messages": [USER, ANSWER], "tools": given})


def test_tools_of_two_schemas_stay_apart() -> None:
    """D06: row 1 has only `a`, row 2 only `b`, and the null argument of row 1 is there."""
    lines = (CASES / "tools_two_schemas.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [Row(number=number, line=number, value=json.loads(line)) for number, line in enumerate(lines, start=1)]
    first, second = to_records(rows, DataSet(path="tools_two_schemas.jsonl"), "data.train")
    assert isinstance(first, Conversation) and isinstance(second, Conversation)
    assert [list(record.tools[0]["function"]["parameters"]["properties"]) for record in (first, second) if record.tools] == [["a"], ["b"]]
    calls = [record.messages[1]["tool_calls"][0] for record in (first, second)]
    assert calls == [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": None}}},
        {"id": "2", "type": "function", "function": {"name": "g", "arguments": {"b": 1}}},
    ]
    assert first.roles == second.roles == "user assistant tool assistant"


@pytest.mark.parametrize(
    ("call", "taken"),
    [
        ({"name": "f", "arguments": {"a": None}}, {"type": "function", "function": {"name": "f", "arguments": {"a": None}}}),
        (
            {"id": "1", "type": None, "function": {"arguments": '{"a": null}', "name": "f"}},
            {"id": "1", "type": None, "function": {"arguments": {"a": None}, "name": "f"}},
        ),
        ({"function": {"name": "f", "arguments": " "}}, {"function": {"name": "f", "arguments": {}}}),
        ({"function": {"name": "f"}}, {"function": {"name": "f", "arguments": {}}}),
    ],
)
def test_forms_of_a_call(call: dict[str, Any], taken: dict[str, Any]) -> None:
    made = message(content=None, tool_calls=[call])
    assert made == {"role": "assistant", "content": None, "tool_calls": [taken]} and json.dumps(made["tool_calls"]) == json.dumps([taken])
    assert message(function_call=call)["tool_calls"] == [taken]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tool_calls": [{"name": "f", "arguments": 3}, {}, 4]}, "messages[1].tool_calls[0].arguments is a number"),
        ({"tool_calls": [{"name": "f", "arguments": 3}, {}, 4]}, "messages[1].tool_calls[1] has no name of a function"),
        ({"tool_calls": [{"name": "f", "arguments": 3}, {}, 4]}, "messages[1].tool_calls[2] is a number"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": "{a: 1}"}}]}, "messages[1].tool_calls[0].arguments is text that is not JSON"),
        ({"function_call": "f()"}, "messages[1].function_call is a string"),
        ({"content": "x", "name": "\ud83d"}, "messages[1] holds half of a surrogate pair"),
        ({"content": "x", "at": date(2026, 1, 1)}, "messages[1] holds what JSON does not have: Object of type date"),
        ({"tool_calls": [{"name": "f", "arguments": {"a": float("nan")}}]}, "messages[1].tool_calls[0] holds what JSON does not have"),
    ],
)
def test_calls_that_are_refused(fields: dict[str, Any], reason: str) -> None:
    assert reason in refused({"messages": [USER, {"role": "assistant", **fields}]})
    assert "messages[0] is the user's, and has tool_calls" in refused({"messages": [{**USER, "tool_calls": [{"name": "f"}]}]})


def test_contents_in_parts() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"text": "c", "image_url": None}, {"type": "input_text", "text": "\n"}, {"type": "output_text", "text": "d"}]
    assert message(content=parts)["content"] == "abc\nd"
    assert message(content=[])["content"] == ""
    text = refused(
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}, 3, {"type": "text"}, {"type": "text", "text": 4}]}]}
    )
    for reason in ("content[0] is of type 'image_url'", "content[1] is a number", "content[2] has no text, only type", "content[3].text is a number"):
        assert f"row 1: messages[0].{reason}" in text


def test_other_keys_of_a_message_reach_the_template_and_nulls_do_not() -> None:
    made = message(content="x", reasoning_content="because", name=None, refusal=None, tool_calls=None, function_call=None)
    assert made == {"role": "assistant", "content": "x", "reasoning_content": "because"}
    assert message(content="x", tool_calls=[]) == {"role": "assistant", "content": "x"}


def test_messages_as_json_text() -> None:
    (record,) = records({"messages": json.dumps([USER, ANSWER])})
    assert record.messages == [USER, ANSWER]
    assert "messages is text that is not JSON" in refused({"messages": "[{"})


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (["user", "tool", "assistant"], "message 2 is a tool's, and no assistant's message before it calls one (roles: user tool assistant)"),
        (["tool", "assistant"], "message 1 is a tool's"),
        (["user", "assistant", "user", "tool"], "message 4 is a tool's"),
    ],
)
def test_a_tool_that_nobody_called(messages: list[str], reason: str) -> None:
    rows = {"messages": [{"role": role, "content": "x"} for role in messages]}
    assert f"f.jsonl:11: row 1: {reason}" in refused(rows)


def test_which_call_a_tool_answers() -> None:
    calls = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "name": "f"}, {"id": "2", "name": "f"}]}
    results = [{"role": "tool", "content": "x", "tool_call_id": name} for name in ("2", "1")]
    assert records({"messages": [USER, calls, *results, ANSWER]})[0].roles == "user assistant tool tool assistant"
    assert records({"messages": [USER, calls, {"role": "tool", "content": "x"}]})[0].messages[2] == {"role": "tool", "content": "x"}
    assert records({"messages": [USER, ANSWER, {"role": "tool", "content": "x"}]})[0].roles == "user assistant tool"
    text = refused({"messages": [USER, calls, {**results[0], "tool_call_id": "3"}]})
    assert "message 3 answers the call '3', and the calls before it are '1', '2' (roles: user assistant tool)" in text


@pytest.mark.parametrize(
    "roles",
    ["user assistant user user", "user assistant assistant", "assistant user assistant", "user", "system system user assistant", "user system assistant"],
)
def test_other_orders_go_on_as_they_are(roles: str) -> None:
    (record,) = records({"messages": [{"role": role, "content": str(index)} for index, role in enumerate(roles.split())]})
    assert record.roles == roles and [each["content"] for each in record.messages] == [str(index) for index in range(len(roles.split()))]
