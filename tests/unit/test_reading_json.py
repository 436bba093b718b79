"""Strict reading of JSONL and JSON: every bad row named, nothing guessed (cases D01, D03, D04, D06, D20)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftcore.data.reading.rows import BadRow, DataFile, Row
from ftcore.data.reading.streams import ByteStream
from ftcore.spec.errors import DataError
from tests.unit.read_files import outcome, read, read_bytes, refused, values

CASES = Path(__file__).resolve().parents[1] / "cases" / "data"
GOOD = '{"messages": [{"role": "user", "content": "Name a colour."}, {"role": "assistant", "content": "Blue."}]}'


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("bom.jsonl", 2),  # D01
        ("mixed_types.jsonl", 3),  # D03
        ("extra_field_last_row.jsonl", 6),  # D04
        ("crlf_blank_lines.jsonl", 2),  # D20
        ("one_big_array.json", 2),
    ],
)
def test_good_files(name: str, rows: int) -> None:
    found = read(CASES / name)
    assert len(found) == rows
    for row in found:
        assert isinstance(row, Row)
        assert row.value["messages"] == json.loads(GOOD)["messages"]
        assert row.file == str(CASES / name)


def test_bom_changes_nothing() -> None:  # D01
    text = (CASES / "bom.jsonl").read_text(encoding="utf-8-sig")
    assert [outcome(row) for row in read(CASES / "bom.jsonl")] == [json.loads(line) for line in text.splitlines()]


def test_types_may_vary_and_fields_may_come_late() -> None:  # D03, D04
    assert [outcome(row)["meta"] for row in read(CASES / "mixed_types.jsonl")] == ["x", 3, {"k": [1, "a"]}]
    first, *_, last = read(CASES / "extra_field_last_row.jsonl")
    assert set(outcome(last)) - set(outcome(first))


def test_lines_are_counted_with_blank_ones(tmp_path: Path) -> None:
    assert [row.line for row in read(CASES / "crlf_blank_lines.jsonl")] == [1, 4]
    assert [row.line for row in read_bytes(tmp_path, "x.json", b'[\n{"a": 1},\n\n{"a":\n 2}]')] == [2, 4]


def test_nested_values_keep_their_own_keys_and_nulls() -> None:  # D06
    first, second = (outcome(row) for row in read(CASES / "tools_two_schemas.jsonl"))
    assert [list(row["tools"][0]["function"]["parameters"]["properties"]) for row in (first, second)] == [["a"], ["b"]]
    assert first["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"a": None}
    assert second["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"b": 1}


def test_truncated_row_is_named_and_the_others_are_read() -> None:  # D20
    found = read(CASES / "truncated_line_3.jsonl")
    assert [isinstance(row, Row) for row in found] == [True, True, False, True]
    assert isinstance(found[2], BadRow)
    (problem,) = found[2].problems
    assert (problem.line, problem.where, problem.file) == (3, "row 3", str(CASES / "truncated_line_3.jsonl"))
    assert "not JSON" in problem.what
    assert problem.fix


def test_row_that_is_an_array_is_named() -> None:  # D03
    first, second = read(CASES / "array_per_line.jsonl")
    assert isinstance(first, BadRow)
    assert "an array" in first.problems[0].what
    assert isinstance(second, Row)


@pytest.mark.parametrize(("name", "data"), [("a.jsonl", b""), ("b.jsonl", b"\n \r\n"), ("c.jsonl", b"\xef\xbb\xbf"), ("d.json", b"[ ]"), ("e.json", b"\n")])
def test_no_rows(tmp_path: Path, name: str, data: bytes) -> None:  # D20
    (problem,) = refused(tmp_path, name, data).problems
    assert "no rows" in problem.what
    assert problem.file == str(tmp_path / name)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_unicode_line_separators_do_not_end_a_line(tmp_path: Path, name: str) -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf"
    data = json.dumps({"prompt": text}, ensure_ascii=False)
    assert values(tmp_path, name, f"{data}\n{data}".encode()) == [{"prompt": text}] * 2
    assert values(tmp_path, name, f"[{data},\n{data}]".encode()) == [{"prompt": text}] * 2


@pytest.mark.parametrize("name", ["rows.jsonl", "array.json"])
def test_bad_bytes_are_placed(tmp_path: Path, name: str) -> None:
    lines = [GOOD.encode(), b'{"prompt": "\xc3\xa9 caf\xe9"}', b'{"prompt": "ok"}']
    data = b"\n".join(lines) if name == "rows.jsonl" else b"[" + b",\n".join(lines) + b"]"
    found = read_bytes(tmp_path, name, data)
    assert [type(row) for row in found] == [Row, BadRow, Row]
    assert isinstance(found[1], BadRow)
    (problem,) = found[1].problems
    assert f"byte 0xe9 at byte offset {data.index(0xE9, data.index(b'caf'))} of the file" in problem.what
    assert (problem.line, problem.where) == (2, "row 2")


def test_all_bad_rows_come_out(tmp_path: Path) -> None:
    assert [type(row) for row in read_bytes(tmp_path, "a.jsonl", b"{]\n" * 30 + GOOD.encode() + b"\n3\n")] == [BadRow] * 30 + [Row, BadRow]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ('{"a": {"b": 1, "b": 1}}', "'b' stands twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": ' + "[" * 100_000, "not usable JSON"),
        ('{"a": ' + "9" * 5000 + "}", "not usable JSON"),
        ('"text"', "a string"),
        ("3", "a number"),
        ("true", "true or false"),
        ("null", "null"),
        (GOOD + GOOD, "Extra data"),
        ("\ufeff{}", "byte order mark"),
        ("\x00", "not JSON"),
        ('{"a": 1}\r{"a": 2}', "Extra data"),
    ],
)
def test_unusable_rows(tmp_path: Path, line: str, reason: str) -> None:
    first, bad, last = read_bytes(tmp_path, "a.jsonl", f"{GOOD}\n{line}\n{GOOD}".encode())
    assert isinstance(first, Row)
    assert isinstance(last, Row)
    assert isinstance(bad, BadRow)
    assert reason in bad.problems[0].what


def test_utf16_is_told(tmp_path: Path) -> None:
    assert "UTF-16" in values(tmp_path, "a.jsonl", '{"a": 1}\n'.encode("utf-16"))[0][0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ("3", "row must be a JSON object, this is a number"),
        ('"x"', "a string"),
        ("[1]", "an array"),
    ],
)
def test_bad_elements_of_an_array(tmp_path: Path, text: str, reason: str) -> None:
    found = values(tmp_path, "a.json", f'[{{"a": 1}}, {text} , {{"a": 2}}]'.encode())
    assert [found[0], found[2]] == [{"a": 1}, {"a": 2}]
    assert reason in found[1][0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "Expecting value at byte offset 1 of the file (the file ends there)"),
        ('[{"a": 1},', "Expecting value"),
        ('[{"a": 1}', "the array is cut off at byte offset 9"),
        ('[{"a": 1}, {"a": "\u00e9', "Unterminated string"),
        ('[{"a": 1} {"a": 2}]', "',' or ']' must follow"),
        ('[{"a": 1},]', "Expecting value"),
        ('[{"a": 1}] [', "something follows the end"),
        ('[{"a": nope}]', "Expecting value at byte offset 7"),
        ('[{"a": NaN, b}]', "Expecting property name"),
        ('[{"a": ' + "[" * 100_000 + "]", "recursion"),
        ('[{"a": ' + "9" * 5000 + "}]", "4300 digits"),
    ],
)
def test_broken_arrays_stop(tmp_path: Path, text: str, reason: str) -> None:
    (problem,) = refused(tmp_path, "a.json", text.encode()).problems
    assert reason in problem.what
    assert problem.file.endswith("a.json")
    assert problem.line is not None


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.json", '{"data": [1],\n "more": 2}', "one JSON object with the keys data, more"),
        ("a.jsonl", '{\n"a": 1\n}\n{\n"a": 2\n}', "several lines each"),
        ("a.parquet", "version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git-lfs"),
        ("a.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git-lfs"),
        ("a.jsonl", "version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git-lfs"),
    ],
)
def test_other_layouts_are_told(tmp_path: Path, name: str, text: str, reason: str) -> None:
    assert reason in refused(tmp_path, name, text.encode()).problems[0].what


def test_the_content_says_whether_it_is_an_array(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"a": 1, "b": ["x", None]}, {"c": {"d": "e,]"}}]
    lines, array, pretty = "\n".join(map(json.dumps, rows)), json.dumps(rows), json.dumps(rows, indent=2)
    for name in ("a.json", "a.jsonl", "a.ndjson", "no_ending"):
        for text in (lines, array, pretty, f"\ufeff{array}\n\n", f" \n{pretty} "):
            assert values(tmp_path, name, text.encode()) == rows
    assert values(tmp_path, "a.json", b'{"a": 1}') == [{"a": 1}]


def test_elements_larger_than_the_window(tmp_path: Path) -> None:
    rows = [{"a": "\u00e9" * 1_500_000}, {"b": "x" * 3_000_000}, {"c": 1}]
    assert values(tmp_path, "a.json", json.dumps(rows, ensure_ascii=False).encode()) == rows
    assert values(tmp_path, "a.jsonl", "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()) == rows


def test_a_first_line_that_is_cut_is_a_bad_row(tmp_path: Path) -> None:
    found = read_bytes(tmp_path, "a.json", f'{{"a": "x\n{GOOD}\n'.encode())
    assert [type(row) for row in found] == [BadRow, Row]


def test_files_that_cannot_be_opened_or_have_changed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="can't be read: No such file"):
        ByteStream(DataFile(path=tmp_path / "gone.jsonl", name="gone.jsonl", kind="jsonl", size=1))


@pytest.mark.parametrize("block", [1, 5, 30])
def test_bad_elements_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("ftcore.data.reading.streams.BLOCK_BYTES", block)
    found = values(tmp_path, "a.json", b'[{"a": NaN, "b": "x\\u00e9xxxxxxxxxxxxxxxxxxx"}, {"a": 1, "a": {"c": [1, 2, 3]}}, {"a": 3}]')
    assert found == [["not usable JSON: NaN is not JSON"], ["not usable JSON: the key 'a' stands twice in one object"], {"a": 3}]


@pytest.mark.parametrize("block", [1, 3, 7, 1 << 20])
def test_bad_bytes_anywhere_in_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("ftcore.data.reading.streams.BLOCK_BYTES", block)
    data = b'[{"a": "\xc3\xa9"},\n {"b": "\xc3\xa9\xff"}, {"c": "\xe2\x82"}, {"d": 1}, {"e": "\xed\xa0\x80"}]'
    found = values(tmp_path, "a.json", data)
    assert [found[0], found[3]] == [{"a": "\u00e9"}, {"d": 1}]
    for index, byte in ((1, 0xFF), (2, 0xE2), (4, 0xED)):
        assert found[index] == [f"not UTF-8: byte 0x{byte:02x} at byte offset {data.index(byte)} of the file"]
