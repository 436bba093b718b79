"""Random rows, written in every way that the readers take, read back equal; from any position and in parts, too."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcore.data.reading.lines import line_start
from ftcore.data.reading.reader import OPEN_END, parts, read_at, read_chunks
from ftcore.data.reading.rows import DataFile, Source
from tests.unit.read_files import outcome, source_of
from tests.unit.test_reading_compressed import PACKERS

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["\u2028", "\x85", "\x0b\x0c", "\ufeff", '"\\', "\r\n", "[{,", "\U0001f600"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6)
ROWS = st.lists(st.dictionaries(TEXT, VALUES, max_size=3), min_size=1, max_size=6)
PLACES: dict[str, Callable[[bytes], bytes]] = {"": lambda data: data, **PACKERS}


@settings(max_examples=60)
@given(
    rows=ROWS,
    ends=st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r\n \t\r\n"]),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    suffix=st.sampled_from(sorted(PLACES)),
    escaped=st.booleans(),
    block=st.integers(1, 40),
)
def test_lines_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], ends: bytes, mark: bytes, suffix: str, escaped: bool, block: int
) -> None:
    lines = mark + ends.join(json.dumps(row, ensure_ascii=escaped).encode() for row in rows)
    for data in (lines, lines + ends):
        check(tmp_path_factory.mktemp("lines") / f"a.jsonl{suffix}", PLACES[suffix](data), rows, block)


@settings(max_examples=60)
@given(
    rows=ROWS,
    indent=st.sampled_from([None, 0, 2]),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    suffix=st.sampled_from(["", ".gz"]),
    escaped=st.booleans(),
    block=st.integers(1, 40),
)
def test_arrays_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], indent: int | None, mark: bytes, suffix: str, escaped: bool, block: int
) -> None:
    data = mark + json.dumps(rows, indent=indent, ensure_ascii=escaped).encode()
    check(tmp_path_factory.mktemp("array") / f"a.json{suffix}", PLACES[suffix](data), rows, block)


def check(path: Path, data: bytes, rows: list[Any], block: int) -> None:
    """Reads a file in blocks of `block` bytes: whole, from each position, and in parts."""
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ftcore.data.reading.streams.BLOCK_BYTES", block)
        source = source_of(path)
        chunks = list(read_chunks(source, 2))
        assert [outcome(row) for chunk in chunks for row in chunk.rows()] == rows
        assert [chunk.count for chunk in chunks] == [2] * (len(rows) // 2) + [1] * (len(rows) % 2)
        assert chunks[-1].read <= path.stat().st_size
        (file,) = source.files
        positions = [0, *(after for after, _ in read_at(file))]
        for index, position in enumerate(positions):
            assert [outcome(row) for _, row in read_at(file, position)] == rows[index:]
        for count in (1, 2, 3, 50):
            cuts = parts(file, count)
            assert len(cuts) <= count
            assert [end for _, end in cuts] == [*(start for start, _ in cuts[1:]), OPEN_END]
            assert [outcome(row) for start, end in cuts for _, row in read_at(file, start, end)] == rows


def test_parts_of_a_large_file_are_about_equal(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(json.dumps({"a": "x" * (index % 50)}).encode() + b"\n" for index in range(3000)))
    (file,) = source_of(path).files
    starts = [start for start, _ in parts(file, 8)]
    sizes = [end - start for start, end in zip(starts, [*starts[1:], file.size], strict=True)]
    assert max(sizes) - min(sizes) < 200
    (packed,) = source_of(write(tmp_path / "a.jsonl.gz", gzip.compress(path.read_bytes()))).files
    assert parts(packed, 8) == [(0, OPEN_END)]


def test_line_starts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b"12\n45\n789")
    file = DataFile(path=path, name="a", kind="jsonl", size=9)
    assert [line_start(file, position) for position in range(10)] == [0, 3, 3, 3, 6, 6, 6, 9, 9, 9]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet", "a.arrow"])
def test_chunks_say_how_far_reading_is(tmp_path: Path, name: str) -> None:
    rows = [{"a": f"{index} {'word ' * 200}"} for index in range(5000)]
    table = pa.Table.from_pylist(rows)
    if name == "a.parquet":
        pq.write_table(table, tmp_path / name, row_group_size=1000)
    elif name == "a.arrow":
        with pa.OSFile(str(tmp_path / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, 500)
    else:
        text = {"a.jsonl": "\n".join(map(json.dumps, rows)), "a.json": json.dumps(rows), "a.csv": "a\n" + "\n".join(row["a"] for row in rows)}[name]
        (tmp_path / name).write_text(text)
    source = source_of(tmp_path / name)
    size = source.files[0].size
    told = [chunk.read for chunk in read_chunks(Source(files=source.files * 2))]
    assert told == sorted(told)
    assert told[-1] <= 2 * size
    for file, half in enumerate((told[: len(told) // 2], told[len(told) // 2 :])):
        assert all(abs(read - file * size - size * (index + 1) / len(half)) < 0.25 * size + (1 << 20) for index, read in enumerate(half))
