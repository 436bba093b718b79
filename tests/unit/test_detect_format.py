"""Which format rows have: told from their fields, by a stated rule, or refused saying what was seen and what to write."""

from __future__ import annotations

from typing import Any

import pytest

from ftcore.data.formats.decide import decide_format
from ftcore.data.formats.record_maker import to_records
from ftcore.data.reading.rows import Row
from ftcore.spec.data_formats import REQUIRED, Detected, detect_format
from ftcore.spec.errors import DataError
from ftcore.spec.names import COLUMNS
from ftcore.spec.sections import DataSet
from ftcore.spec.variables import Variables
from ftcore.spec.yaml_strict import parse_yaml
from tests.unit.test_fields import ANSWER, USER

MESSAGES = [USER, ANSWER]
TURNS = [{"from": "human", "value": "hi"}]


def rows(*values: dict[str, Any]) -> list[Row]:
    return [Row(number=number, line=number, value=value) for number, value in enumerate(values, start=1)]


@pytest.mark.parametrize(
    ("row", "form", "columns"),
    [
        ({"messages": MESSAGES, "prompt": "x", "completion": "y", "text": "z"}, "messages", {}),
        ({"conversations": MESSAGES}, "messages", {"messages": "conversations"}),
        ({"messages": TURNS}, "sharegpt", {"conversations": "messages"}),
        ({"conversation": [{"role": "user", "value": "x"}]}, "sharegpt", {"conversations": "conversation"}),
        ({"messages": [], "conversations": TURNS}, "sharegpt", {}),
        ({"messages": [{"role": "assistant", "tool_calls": []}]}, "messages", {}),
        ({"messages": '[{"role": "user", "content": "x"}]'}, "messages", {}),
        ({"input_ids": [1], "labels": [1], "text": "x"}, "tokenized", {}),
        ({"prompt": MESSAGES, "completion": MESSAGES}, "prompt_completion", {}),
        ({"instruction": "a", "input": "b", "output": "c", "text": "d"}, "alpaca", {}),
        ({"instruction": "a", "output": "c", "system_prompt": "d"}, "alpaca", {"system": "system_prompt"}),
        ({"instruction": "a", "response": "c", "context": ""}, "alpaca", {"output": "response", "input": "context"}),
        ({"question": "a", "answer": "b"}, "prompt_completion", {"prompt": "question", "completion": "answer"}),
        ({"input": "a", "output": "b"}, "prompt_completion", {"prompt": "input", "completion": "output"}),
        ({"query": "a", "response": "b", "contexts": ""}, "prompt_completion", {"prompt": "query", "completion": "response"}),
        ({"text": "a", "url": "b"}, "text", {}),
        ({"messages": None, "text": "a"}, "text", {}),
        ({"messages": None}, "messages", {}),
        ({"messages": [{"role": "user"}]}, "messages", {}),
        ({"conversations": [{"input": "a", "output": "b"}]}, "sharegpt", {}),
    ],
)
def test_what_a_row_is(row: dict[str, Any], form: str, columns: dict[str, str]) -> None:
    found = detect_format([row])
    assert (found.format, found.columns) == (form, columns)
    assert set(found.columns) <= set(COLUMNS[form]) and found.reason.startswith("every row looked at: ")


@pytest.mark.parametrize(
    ("row", "seen", "fix"),
    [
        ({"a": 1, "b": {}, "c": None, "d": True}, "a (a number), b (an object), c (null), d (true or false)", "docs/data-formats.md"),
        ({str(number): "x" for number in range(9)}, "7 (text), ...", "docs/data-formats.md"),
        ({}, "none", "docs/data-formats.md"),
        ({"body": "x"}, "body (text)", "format: text, columns: {text: body}"),
        ({"ask": "x", "tell": "y"}, "ask (text), tell (text)", "columns: {prompt: ask, completion: tell}"),
        ({"talk": MESSAGES}, "talk (a list)", "format: messages, columns: {messages: talk}"),
        ({"talk": TURNS}, "talk (a list)", "format: sharegpt, columns: {conversations: talk}"),
        ({"prompt": "x", "chosen": "y", "rejected": "z"}, "chosen (text)", "format: prompt_completion, columns: {prompt: prompt, completion: chosen}"),
        ({"chosen": MESSAGES, "rejected": MESSAGES}, "chosen (a list)", "format: messages, columns: {messages: chosen}"),
        ({"input_ids": [1, 2]}, "input_ids (a list)", "tokens need labels"),
        (
            {"question": "x", "context": "c", "answer": "y"},
            "context (text)",
            "format: alpaca, columns: {instruction: question, input: context, output: answer}",
        ),
        (
            {"system_prompt": "s", "question": "x", "response": "y"},
            "system_prompt (text)",
            "format: alpaca, columns: {instruction: question, system: system_prompt, output: response}",
        ),
        ({"prompt": "x", "response": "y", "history": []}, "history (a list)", "format: alpaca, columns: {instruction: prompt, output: response}"),
        ({"document": "x", "id": "y", "summary": "z"}, "summary (text)", "docs/data-formats.md"),
        ({"text": 3}, "text (a number)", "docs/data-formats.md"),
    ],
)
def test_what_is_said_when_nothing_is_found(row: dict[str, Any], seen: str, fix: str) -> None:
    found = detect_format([row])
    assert found.format == "" and seen in found.reason and fix in found.fix
    with pytest.raises(DataError) as caught:
        decide_format(DataSet(path="f.jsonl"), rows(row), "data.train")
    (problem,) = caught.value.problems
    assert (problem.file, problem.where, problem.fix) == ("f.jsonl", "data.train.format", found.fix) and seen in problem.what


def test_no_rows() -> None:
    assert detect_format([]) == Detected(format="", reason="there is no row to look at", fix="name a file with rows")


def test_most_rows_tell_and_the_others_are_named() -> None:
    pair, talk = {"prompt": "a", "completion": "b"}, {"messages": MESSAGES}
    found = detect_format([pair, talk, {"x": 1}, talk])
    assert (found.format, found.reason) == ("messages", "2 of the first 4 rows looked at: messages")
    assert detect_format([pair, talk]).format == "prompt_completion"
    assert detect_format([*[talk] * 20, *[pair] * 99]).format == "messages"
    with pytest.raises(DataError) as caught:
        to_records(rows(talk, pair, {"question": "a", "answer": "b"}, talk, {"conversation": MESSAGES}, {"x": 1}), DataSet(path="f.jsonl"), "data.train")
    assert [problem.where for problem in caught.value.problems] == ["row 2", "row 3", "row 5", "row 6"]
    text = str(caught.value)
    assert text.count("it looks like the format prompt_completion") == 2 and "here messages: give these rows a set of their own" in text
    assert "if all are so, write format: prompt_completion, columns: {prompt: question, completion: answer}" in text
    assert "write data.train.columns: {messages: conversation}" in text and "data.train.columns: {messages: NAME}" in text


@pytest.mark.parametrize(
    ("columns", "row", "form", "expected"),
    [
        ({"messages": "talk"}, {"talk": MESSAGES, "messages": 3}, "messages", {}),
        ({"conversations": "talk"}, {"talk": TURNS}, "sharegpt", {}),
        ({"conversations": "talk"}, {"talk": MESSAGES}, "sharegpt", {}),
        ({"prompt": "q", "completion": "a"}, {"q": "x", "a": "y"}, "prompt_completion", {}),
        ({"prompt": "q"}, {"q": "x", "answer": "y"}, "prompt_completion", {"completion": "answer"}),
        ({"instruction": "q", "output": "a"}, {"q": "x", "a": "y", "context": "z"}, "alpaca", {"input": "context"}),
        ({"text": "body"}, {"body": "x", "text": "y"}, "text", {}),
        ({"tools": "api"}, {"messages": MESSAGES, "api": []}, "messages", {}),
        ({"system": "rules"}, {"instruction": "x", "output": "y", "rules": "z"}, "alpaca", {}),
    ],
)
def test_columns_that_the_user_names(columns: dict[str, str], row: dict[str, Any], form: str, expected: dict[str, str]) -> None:
    found = detect_format([row], columns)
    assert (found.format, found.columns) == (form, {**columns, **expected})


def test_columns_that_fit_no_format() -> None:
    found = detect_format([{"messages": MESSAGES}], {"messages": "messages", "prompt": "x"})
    assert (found.format, found.reason) == ("", "no format has the fields messages, prompt")


def test_columns_that_no_row_has() -> None:
    dataset = DataSet(path="f.jsonl", format="alpaca", columns={"system": "rules", "weight": "w"})
    with pytest.raises(DataError) as caught:
        decide_format(dataset, rows({"instruction": "a", "output": "b", "w": None}), "data.train")
    (problem,) = caught.value.problems
    assert (problem.where, problem.what) == ("data.train.columns.system", "none of the first 1 rows has the field 'rules'")


def test_every_format_has_its_fields() -> None:
    assert set(REQUIRED) == set(COLUMNS)
    assert all(set(names) <= set(COLUMNS[form]) for form, names in REQUIRED.items())


@pytest.mark.parametrize("names", [("prompt", " completion"), ("0", "1"), ("sep=", ""), ("true", "a: b"), ("x, y", "${HOME}"), ("#", "null")])
def test_what_it_says_to_write_reads_back(names: tuple[str, str]) -> None:
    """Names of a file may hold spaces and signs, or look like numbers."""
    row = dict.fromkeys(names, "x")
    text = detect_format([row]).fix
    written = "{" + text.split("columns: {")[1].split("} (or")[0].removesuffix("}") + "}"
    found, _, problems = parse_yaml(f"columns: {written}\n", "s.yaml", Variables(environment={}, is_secret=lambda name, value: False))
    assert not problems and set(found["columns"].values()) == set(names)
