"""A file of JSON lines is followed from its end, whatever happens to it meanwhile."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from launcher.watching import tail
from launcher.watching.tail import JsonTail


def add(path: Path, *numbers: int) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps({"update": number}) + "\n" for number in numbers)


def numbers(followed: JsonTail) -> tuple[list[int], bool]:
    news = followed.poll()
    return [line["update"] for line in news.lines], news.is_anew


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    followed = JsonTail(path)
    assert numbers(followed) == ([], False)
    add(path, *range(1, 2001))
    assert numbers(followed) == (list(range(1, 2001)), True)
    add(path, 2001)
    read: list[int] = []
    pread = os.pread
    monkeypatch.setattr(tail.os, "pread", lambda handle, count, place: read.append(len(found := pread(handle, count, place))) or found)
    assert numbers(followed) == ([2001], False) and numbers(followed) == ([], False)
    # The new line, and the bytes before it that prove it is the same file.
    assert sum(read) < 5 * tail.MARK_BYTES


def test_half_a_line_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 1}\n{"upd')
    followed = JsonTail(path)
    assert numbers(followed) == ([1], True)
    with path.open("a") as file:
        file.write('ate": 2}\nno json\n[3]\n{"update": 4}\n')
    assert numbers(followed) == ([2, 4], False)


def test_a_cut_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    add(path, 1, 2, 3)
    followed = JsonTail(path)
    followed.poll()
    os.truncate(path, len('{"update": 1}\n'))
    assert numbers(followed) == ([1], True)
    # Cut and written on between two looks, so that it is longer than before.
    os.truncate(path, 0)
    add(path, 5, 6, 7)
    assert numbers(followed) == ([5, 6, 7], True)


def test_another_file_of_that_name_and_none(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    add(path, 1, 2)
    followed = JsonTail(path)
    followed.poll()
    add(tmp_path / "new", 1, 2, 3)
    os.replace(tmp_path / "new", path)
    assert numbers(followed) == ([1, 2, 3], True)
    path.unlink()
    assert numbers(followed) == ([], True) and numbers(followed) == ([], False)
    add(path, 4)
    assert numbers(followed) == ([4], True)


def test_of_a_long_file_the_end_is_read_and_samples_of_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    add(path, *range(1, 20_001))
    found, _ = numbers(JsonTail(path, first_bytes=1000, samples=10))
    assert found[:10] == sorted(found[:10]) and found[0] == 1 and 1700 < found[1] < 2300
    assert found[10:] == list(range(found[10], 20_001)) and len(found) < 100
    assert numbers(JsonTail(path, first_bytes=1000))[0] == found[10:]


def test_a_line_as_long_as_all_that_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"update": 1, "text": "x" * 300_000}) + "\n")
    followed = JsonTail(path, first_bytes=1000, samples=4)
    assert followed.poll().lines == []
    add(path, 2)
    assert numbers(followed) == ([2], False)


def test_a_line_without_an_end_keeps_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.watching.tail.MOST_AT_ONCE", 64)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"\0" * 200 + b'\n{"update": 1}\n')
    followed = JsonTail(path)
    assert [line for _ in range(6) for line in followed.poll().lines] == [{"update": 1}]
