"""Preparations that meet damaged caches, rows that no encoding or memory takes, and files that change meanwhile."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource
from ftcore.data.reading.reader import read_chunks
from ftcore.data.reading.rows import Chunk, Source
from ftcore.spec.errors import DataError
from tests.unit.prepared_sets import prepared, section, tiny_source
from tests.unit.read_files import source_of

CASES = Path(__file__).resolve().parents[1] / "cases" / "data"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return tiny_source(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damaged_cache_is_made_anew(damage: str, tiny: ModelSource, tmp_path: Path) -> None:
    first = prepared(section(CASES / "bom.jsonl"), tiny, tmp_path)
    path = Path(first.arrow)
    payload = bytearray(path.read_bytes())
    if damage == "cut":
        payload = payload[:-7]
    else:
        payload[payload.index(SampleSet.open(path).sample(1).ids.tobytes()) + 4] ^= 1
    path.write_bytes(payload)
    assert prepared(section(CASES / "bom.jsonl"), tiny, tmp_path) == first
    assert SampleSet.open(path).is_intact()


@pytest.mark.parametrize("damage", ["one byte", "cut", "gone", "another set's"])
def test_damaged_outcomes_are_made_anew(damage: str, tiny: ModelSource, tmp_path: Path) -> None:
    data = section(CASES / "long_prompt_short_answer.jsonl", max_length=600, overlong="truncate_right")
    first = prepared(data, tiny, tmp_path)
    outcomes = Path(first.outcomes)
    written = outcomes.read_bytes()
    assert written
    outcomes.unlink()
    if damage != "gone":
        outcomes.write_bytes({"one byte": written.replace(b"1", b"2", 1), "cut": written[:-9], "another set's": b""}[damage])
    assert prepared(data, tiny, tmp_path) == first
    assert outcomes.read_bytes() == written


@pytest.mark.parametrize("rule", ["drop", "error"])
def test_half_a_surrogate_pair_in_a_reason(rule: str, tiny: ModelSource, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    rows.write_text("".join(json.dumps(row) + "\n" for row in [chat] * 20 + [{"\ud800": 1}] * 30))
    data = replace(section(rows, form="auto"), on_bad_row=rule)
    if rule == "error":
        with pytest.raises(DataError) as refused:
            prepared(data, tiny, tmp_path / "cache")
        listed = Path(str(refused.value.problems[-1].what).split(" stand in ")[1]).read_text()
        assert listed.count("\\ud800") == 30
        return
    made_of = prepared(data, tiny, tmp_path / "cache")
    assert (made_of.samples, made_of.bad_rows) == (20, 30)
    assert all("\ud800" in json.loads(line)["reason"] for line in Path(made_of.outcomes).read_text().splitlines())


@pytest.mark.parametrize("change", ["longer", "replaced", "gone"])
def test_a_file_that_changes_while_it_is_read(change: str, tiny: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache of other rows must lie under the digest of the bytes that were there before."""
    rows = tmp_path / "rows.jsonl"
    written = '{"text": "one"}\n' * 5

    def read_and_change(source: Source) -> Iterator[Chunk]:
        with rows.open("a") as file:
            file.write('{"text": "two"}\n')
        yield from read_chunks(source)
        if change == "replaced":
            rows.unlink()
            rows.write_text(written)
        elif change == "gone":
            rows.unlink()

    rows.write_text(written)
    data = section(rows, form="text")
    with monkeypatch.context() as patched:
        patched.setattr("ftcore.data.build.read_chunks", read_and_change)
        with pytest.raises(DataError, match=r"data\.train: the file changed while it was read"):
            prepared(data, tiny, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "data").glob("*.arrow"))
    rows.write_text(written)
    assert prepared(data, tiny, tmp_path / "cache").rows == 5


def test_a_row_that_no_memory_takes(tiny: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcore.data.templates.tokenise.MOST_CHARACTERS", 100)
    (tmp_path / "rows.jsonl").write_text('{"text": "short"}\n' + json.dumps({"text": "x" * 101}) + "\n")
    data = section(tmp_path / "rows.jsonl", form="text")
    with pytest.raises(DataError, match=r"row 2: a row of 1.. characters: at most 100 are tokenised at once"):
        prepared(data, tiny, tmp_path / "cache")
    assert prepared(replace(data, on_bad_row="drop"), tiny, tmp_path / "cache").dropped == {"bad_row": 1}


def test_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"na\xffme.jsonl")
    (tmp_path / name).write_text('{"text": "a"}\n')
    for path in (tmp_path / name, tmp_path, tmp_path / "*.jsonl"):
        with pytest.raises(DataError, match=r"na\\udcffme\.jsonl: its name is not UTF-8"):
            source_of(path)


def test_what_can_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the system's answers are made here."""
    (tmp_path / "sub").mkdir()
    for name in ("a.jsonl", "sub/b.jsonl"):
        (tmp_path / name).write_text('{"text": "a"}\n')
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda path, mode: mode != os.R_OK)
        with pytest.raises(DataError, match=r"can't read .*a\.jsonl: Permission denied"):
            source_of(tmp_path / "a.jsonl")
        patched.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(DataError, match=r"can't look into .*: Permission denied"):
            source_of(tmp_path)
    scandir = os.scandir

    def closed(path: str) -> object:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    for path in (tmp_path, tmp_path / "**/*.jsonl"):
        with monkeypatch.context() as patched:
            patched.setattr(os, "scandir", closed)
            with pytest.raises(DataError, match=r"can't look into .*sub: Permission denied"):
                source_of(path)
    os.mkfifo(tmp_path / "c.jsonl")
    with pytest.raises(DataError, match=r"c\.jsonl: it is no regular file"):
        source_of(tmp_path)
