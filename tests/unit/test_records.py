"""Strict reading of JSONL and JSON: every bad row named, nothing guessed (cases D01, D03, D04, D06, D20)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftcore.data.formats.record_kinds import Conversation, TextPair
from ftcore.data.formats.record_maker import to_records
from ftcore.data.records import Row, load_bytes, parse_rows
from ftcore.spec.errors import DataError
from ftcore.spec.sections import DataSet

CASES = Path(__file__).resolve().parents[1] / "cases" / "data"
GOOD = '{"messages": [{"role": "user", "content": "Name a colour."}, {"role": "assistant", "content": "Blue."}]}'


def read(name: str) -> list[Row]:
    path = str(CASES / name)
    return parse_rows(load_bytes(path), path)


def refused(payload: bytes, file: str = "rows.jsonl") -> DataError:
    with pytest.raises(DataError) as caught:
        parse_rows(payload, file)
    return caught.value


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("bom.jsonl", 2),
        ("mixed_types.jsonl", 3),
        ("extra_field_last_row.jsonl", 6),
        ("crlf_blank_lines.jsonl", 2),
        ("one_big_array.json", 2),
        ("tools_two_schemas.jsonl", 2),
    ],
)
def test_good_files(name: str, rows: int) -> None:
    found = read(name)
    assert [row.number for row in found] == list(range(1, rows + 1))
    records = to_records(found, DataSet(path=name), "data.train")
    assert all(isinstance(record, Conversation) for record in records)
    if name != "tools_two_schemas.jsonl":
        assert all(row.value["messages"] == json.loads(GOOD)["messages"] for row in found)


def test_lines_are_counted_with_blank_ones() -> None:
    assert [row.line for row in read("crlf_blank_lines.jsonl")] == [1, 4]
    assert [row.line for row in read("one_big_array.json")] == [None, None]


def test_nested_values_keep_their_own_keys_and_nulls() -> None:
    first, second = to_records(read("tools_two_schemas.jsonl"), DataSet(path="x"), "data.train")
    assert isinstance(first, Conversation)
    assert isinstance(second, Conversation)
    assert [list(record.tools[0]["function"]["parameters"]["properties"]) for record in (first, second) if record.tools] == [["a"], ["b"]]
    assert first.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": None}
    assert second.messages[1]["tool_calls"][0]["function"]["arguments"] == {"b": 1}


def test_truncated_row_is_named() -> None:
    with pytest.raises(DataError) as caught:
        read("truncated_line_3.jsonl")
    (problem,) = caught.value.problems
    assert (problem.line, problem.where, problem.file) == (3, "row 3", str(CASES / "truncated_line_3.jsonl"))
    assert "not JSON" in problem.what
    assert problem.fix


def test_row_that_is_an_array_is_named() -> None:
    with pytest.raises(DataError) as caught:
        read("array_per_line.jsonl")
    assert [(problem.line, "an array" in problem.what) for problem in caught.value.problems] == [(1, True)]


def test_no_rows() -> None:
    for payload in (b"", b"\n \r\n", b"\xef\xbb\xbf"):
        assert "no rows" in str(refused(payload))
    assert "no rows" in str(refused(b"[]", "rows.json"))


def test_unicode_line_separators_do_not_end_a_line() -> None:
    text = '{"prompt": "a\u2028b\u2029c\x85d\x0be", "completion": "f"}\n'.replace("\x0b", "\\u000b")
    (row,) = parse_rows(text.encode(), "rows.jsonl")
    assert row.value["prompt"] == "a\u2028b\u2029c\x85d\x0be"


def test_bad_bytes_are_placed() -> None:
    payload = GOOD.encode() + b"\n" + b'{"prompt": "caf\xe9"}\n'
    (problem,) = refused(payload).problems
    assert f"byte 0xe9 at byte offset {payload.index(0xE9)}" in problem.what
    assert (problem.line, problem.where) == (2, "row 2")
    (problem,) = refused(b'[{"prompt": "caf\xe9"}]', "rows.json").problems
    assert "byte offset 16" in problem.what


def test_all_bad_rows_are_listed_and_the_rest_counted() -> None:
    problems = refused(b"{]\n" * 30).problems
    assert [problem.line for problem in problems] == [*range(1, 21), None]
    assert "and 10 more" in problems[-1].what
    assert len(refused(b"{]\n" + GOOD.encode() + b"\n3\n").problems) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "not usable JSON"),
        ('"text"', "a string"),
        ("3", "a number"),
        ("true", "true or false"),
        ("null", "null"),
        (GOOD + GOOD, "Extra data"),
    ],
)
def test_unusable_rows(line: str, reason: str) -> None:
    assert reason in str(refused(line.encode()))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[{]", "not a JSON array"),
        ('[{"a": NaN}]', "not usable JSON"),
        ('[{"a": 1}, 3]', "row 2: a row must be a JSON object, this is a number"),
        ('{"data": [1],\n "more": 2}', "one JSON object with the keys data, more"),
    ],
)
def test_unusable_arrays(text: str, reason: str) -> None:
    assert reason in str(refused(text.encode(), "rows.json"))


def test_json_file_with_one_object_a_line() -> None:
    assert len(parse_rows(f"{GOOD}\n{GOOD}\n".encode(), "rows.json")) == 2
    assert len(parse_rows(GOOD.encode(), "rows.json")) == 1


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_bytes(str(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match="can't read"):
        load_bytes(str(tmp_path))


def test_array_and_lines_give_the_same_records() -> None:
    row = json.loads(GOOD)
    pair = {"prompt": "a", "completion": "b"}
    lines = parse_rows("\n".join(json.dumps(value) for value in (row, pair)).encode(), "x.jsonl")
    array = parse_rows(json.dumps([row, pair], indent=1).encode(), "x.json")
    assert [line.value for line in lines] == [item.value for item in array]
    assert to_records(lines[1:], DataSet(path="x", format="prompt_completion"), "data.train") == [TextPair(row=lines[1], prompt="a", completion="b")]
