"""Compressed files: read as the plain ones, whatever their name says; cut or damaged ones are refused with the place."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from ftcore.data.reading.reader import read_at, read_chunks
from ftcore.data.reading.rows import BadRow
from ftcore.spec.errors import DataError
from tests.unit.read_files import outcome, read_bytes, refused, source_of, values

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
}
ROWS = b'\xef\xbb\xbf{"a": 1}\r\n\n{"a": "x\xe2\x80\xa8y"}\n{]\n'
EXPECTED = [{"a": 1}, {"a": "x\u2028y"}]


@pytest.mark.parametrize("suffix", PACKERS)
def test_rows_as_in_the_plain_file(tmp_path: Path, suffix: str) -> None:
    packed = PACKERS[suffix](ROWS)
    for name, data in ((f"a.jsonl{suffix}", packed), ("plain.jsonl", packed), (f"notpacked.jsonl{suffix}", ROWS), (f"A.JSONL{suffix.upper()}", packed)):
        found = values(tmp_path, name, data)
        assert found[:2] == EXPECTED
        assert "not JSON" in found[2][0]
    assert values(tmp_path, f"a.json{suffix}", PACKERS[suffix](b'[{"a": 1}]')) == EXPECTED[:1]
    assert values(tmp_path, f"a.csv{suffix}", PACKERS[suffix](b"a,b\n1,2\n")) == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize("suffix", PACKERS)
def test_several_streams_in_one_file(tmp_path: Path, suffix: str) -> None:
    packed = PACKERS[suffix](b'{"a": 1}\n') + PACKERS[suffix](b'{"a": 2}\n')
    assert values(tmp_path, f"a.jsonl{suffix}", packed) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("suffix", PACKERS)
def test_cut_files_say_where(tmp_path: Path, suffix: str) -> None:
    text = b"".join(b'{"a": "%s"}\n' % os.urandom(500).hex().encode() for _ in range(2500))
    packed = PACKERS[suffix](text)
    (problem,) = refused(tmp_path, f"a.jsonl{suffix}", packed[: len(packed) * 3 // 4]).problems
    assert problem.file == str(tmp_path / f"a.jsonl{suffix}")
    assert "file is cut off after " in problem.what
    assert 1_000_000 < int(problem.what.split(" bytes of its text")[0].rsplit(" ", 1)[1]) < len(text)


def test_rows_before_the_cut_come_first(tmp_path: Path) -> None:
    text = b"".join(b'{"a": "%s"}\n' % os.urandom(50).hex().encode() for _ in range(3000))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(text)[:100_000])
    chunks = read_chunks(source_of(path))
    found = [row for chunk in islice(chunks, 2) for row in chunk.rows()]
    with pytest.raises(DataError, match="cut off after"):
        list(chunks)
    assert [outcome(row) for row in found] == [json.loads(line) for line in text.splitlines()[:512]]


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(os.urandom(20_000).hex().encode()))
    packed[5000:5050] = bytes(50)
    assert "the gzip file is damaged" in refused(tmp_path, "a.jsonl.gz", bytes(packed)).problems[0].what
    assert "the gzip file is damaged" in refused(tmp_path, "b.jsonl.gz", gzip.compress(b"{}\n") + b"rest").problems[0].what


@pytest.mark.parametrize("suffix", PACKERS)
def test_empty_ones_have_no_rows(tmp_path: Path, suffix: str) -> None:
    for data in (b"", PACKERS[suffix](b"")):
        assert "no rows" in refused(tmp_path, f"a.jsonl{suffix}", data).problems[0].what


def test_offsets_count_the_text(tmp_path: Path) -> None:
    bad = read_bytes(tmp_path, "a.jsonl.gz", gzip.compress(b'{}\n"caf\xe9"\n'))[1]
    assert isinstance(bad, BadRow)
    assert "byte 0xe9 at byte offset 7 of the decompressed text" in bad.problems[0].what


def test_a_position_behind_the_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n"))
    (file,) = source_of(path).files
    with pytest.raises(DataError, match="holds 3 bytes of text, reading was to go on at 100"):
        list(read_at(file, 100))
    assert list(read_at(replace(file, compression=""), 3)) == []


def test_zstd_files_that_begin_with_a_frame_to_skip(tmp_path: Path) -> None:
    """As pzstd writes them, a frame to skip before each of data."""
    skipped = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    packed = b"".join(skipped + PACKERS[".zst"](row) for row in (b'{"a": 1}\n', b'{"a": 2}\n'))
    for name in ("a.jsonl.zst", "a.jsonl", "unnamed"):
        assert values(tmp_path, name, packed) == [{"a": 1}, {"a": 2}]
    assert values(tmp_path, "a.csv.zst", skipped.replace(b"\x50", b"\x5f", 1) + PACKERS[".zst"](b"a,b\n1,2\n")) == [{"a": "1", "b": "2"}]
