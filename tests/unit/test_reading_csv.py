"""CSV by the standard library, strictly: every row that does not fit the header is named."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcore.data.reading.csv_rows import csv_items
from ftcore.data.reading.rows import BadRow, DataFile, Row
from tests.unit.read_files import outcome, read_bytes, refused, values

PLAIN = b'prompt,completion\n"a, ""b""\nc",d\n\n"e","f"\n'


def test_quotes_separators_and_line_ends_inside_values(tmp_path: Path) -> None:
    found = read_bytes(tmp_path, "a.csv", PLAIN)
    assert [outcome(row) for row in found] == [{"prompt": 'a, "b"\nc', "completion": "d"}, {"prompt": "e", "completion": "f"}]
    assert [row.line for row in found] == [2, 5]


def test_windows_line_ends_and_bom(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + PLAIN.replace(b"\n", b"\r\n")
    assert values(tmp_path, "a.csv", data) == [{"prompt": 'a, "b"\r\nc', "completion": "d"}, {"prompt": "e", "completion": "f"}]


@pytest.mark.parametrize(
    ("name", "header", "row", "expected"),
    [
        ("a.csv", "a;b", "1,5;2", ["1,5", "2"]),
        ("a.csv", "a\tb", "1,5\t2", ["1,5", "2"]),
        ("a.csv", "a;x,b", "1;,2", ["1;", "2"]),
        ("a.tsv", "a,b\tc", "1,2\t3", ["1,2", "3"]),
        ("a.tsvx.csv", "a,b\tc", "1,2", ["1", "2"]),
        ("a.TSV.bz2", "a,b\tc", "1,2\t3", ["1,2", "3"]),
        ("a.csv", '"x\ny",b', "1,2", ["1", "2"]),
        ("a.csv", ",b", "0,2", ["0", "2"]),
    ],
)
def test_what_separates_fields(tmp_path: Path, name: str, header: str, row: str, expected: list[str]) -> None:
    (value,) = values(tmp_path, name, f"{header}\n{row}\n".encode())
    assert list(value.values()) == expected


def test_unicode_separators_and_nul_are_text(tmp_path: Path) -> None:
    text = "x\u2028y\x85\x0b\x0c\x00"
    assert values(tmp_path, "a.csv", f"a,b\n{text},2\n".encode()) == [{"a": text, "b": "2"}]


def test_rows_that_do_not_fit_are_named_and_the_others_read(tmp_path: Path) -> None:
    found = read_bytes(tmp_path, "a.csv", b'a,b\n1\n1,2,3\n"x"y,2\ncaf\xe9,4\n5,6\n')
    assert [type(row) for row in found] == [BadRow] * 4 + [Row]
    reasons = [outcome(row)[0] for row in found[:4]]
    for reason, said in zip(
        reasons, ("1 fields, the header has 2", "3 fields", "not CSV: ',' expected after '\"'", "byte 0xe9 at byte offset 22 of the file"), strict=True
    ):
        assert said in reason
    assert [row.line for row in found] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("data", "line", "where", "reason"),
    [
        (b'a,b\n1,2\n"x,y\nz,w\n', 3, "row 2", "has no end"),
        (b"a,a\n1,2\n", 1, "", "'a' more than once"),
        (b"a,caf\xe9\n1,2\n", 1, "", "not UTF-8: byte 0xe9 at byte offset 5"),
        (b"a,b\r1,2\r", 1, "", "the header is not CSV: new-line character"),
        (b'"a"b,c\n1,2\n', 1, "", "the header is not CSV"),
        (b"a,b\n", None, "", "no rows: the file is empty, or has only a header"),
        (b"", None, "", "no rows"),
    ],
)
def test_files_whose_rows_cannot_be_told_apart(tmp_path: Path, data: bytes, line: int | None, where: str, reason: str) -> None:
    (problem,) = refused(tmp_path, "a.csv", data).problems
    assert (problem.line, problem.where) == (line, where)
    assert reason in problem.what


def test_an_unclosed_quote_does_not_take_in_a_huge_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcore.data.reading.csv_rows.LARGEST_FIELD", 10_000)
    assert "has no end" in refused(tmp_path, "a.csv", b'a,b\n"x,y\n' + b"z,w\n" * 20_000).problems[0].what


def test_long_values_are_read(tmp_path: Path) -> None:
    text = "w " * 200_000
    assert values(tmp_path, "a.csv", f"text\n{text}\n".encode()) == [{"text": text}]


CELL = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(['"', ",", "\n", "\r\n", "", "\u2028", " x ", "a\r"])


@given(rows=st.lists(st.lists(CELL, min_size=2, max_size=2), min_size=1, max_size=8), ends=st.sampled_from(["\n", "\r\n"]))
def test_what_the_standard_library_writes_is_read_back(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], ends: str) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=ends, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *rows])
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(text.getvalue().encode())
    file = DataFile(path=path, name="a.csv", kind="csv", size=path.stat().st_size)
    found = [row for _, row in csv_items(file, first=1)]
    assert [outcome(row) for row in found] == [{"a": one, "b": other} for one, other in rows]


def test_a_line_of_white_space_is_a_blank_line(tmp_path: Path) -> None:
    assert values(tmp_path, "a.csv", b"a,b\r\n1,2\r\n   \r\n\t\r\n3,4\r\n") == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]
    assert values(tmp_path, "one.csv", b"a\n1\n  \n\n") == [{"a": "1"}, {"a": "  "}]
