"""Patterns with `**`: what glob finds, each file once, also where links lead back; and no folder is passed over in silence."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

import pytest

from ftcore.data.reading.patterns import deep_matches
from ftcore.data.reading.splits import held_out_by_case
from ftcore.spec.errors import DataError

FILES = ("a.jsonl", "x/a.jsonl", "x/b.csv", "x/y/a.jsonl", "x/y/z/b.jsonl", ".h/a.jsonl", "x/.i/b.jsonl", "x/.c.jsonl", "w/y/a.json")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "pattern",
    ["**", "**/*", "**/*.jsonl", "x/**", "x/**/*.jsonl", "**/y/*", "**/y/**/*.jsonl", "*/**/a.json*", "**/**/b.*", "**/.i/*", ".h/**", "x/**/.c*",],
)
def test_finds_what_glob_finds(tree: Path, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    for each in (pattern, f"{tree}/{pattern}"):
        assert deep_matches(each) == sorted({path for path in glob.glob(each, recursive=True) if os.path.isfile(path)})


def test_links_that_lead_back_give_each_file_once(tree: Path) -> None:
    (tree / "x" / "y" / "up").symlink_to("../..")
    (tree / "again").symlink_to("x")
    (tree / "self").symlink_to("self")
    found = deep_matches(f"{tree}/**/*.jsonl")
    assert len({os.path.realpath(path) for path in found}) == len(found) == 4
    assert deep_matches(f"{tree}/again/y/**/a.jsonl")[0] == f"{tree}/again/y/a.jsonl"


def test_a_folder_that_cannot_be_looked_into_is_told(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def scandir(path: str) -> Any:
        if path.endswith("/y"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match="Permission denied"):
        deep_matches(f"{tree}/**/*.jsonl")
    assert deep_matches(f"{tree}/nowhere/**/*.jsonl") == []


def test_held_out_files_in_capitals_are_told_of() -> None:
    """The hub's rules read small letters alone."""
    assert held_out_by_case(["Train/a.jsonl", "Test/a.jsonl"]) == "Test/a.jsonl"
    assert held_out_by_case(["a.jsonl", "EVAL.jsonl"]) == "EVAL.jsonl"
    assert held_out_by_case(["Train/a.jsonl", "latest/a.jsonl", "test/b.jsonl"]) == ""
