"""What a plan takes an unprepared data set to be: single files of each kind, folders, patterns, the hub, several sets."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import DataSet, TrainingSet
from launcher.memory.cost import run_data
from launcher.memory.data_guess import HUB_ROWS, SUPERVISED_SHARE, guess
from launcher.memory.lengths import epoch_draws, training_lengths
from tests.unit.planned_runs import run

CHAT = {"messages": [{"role": "user", "content": "abc" * 100}, {"role": "assistant", "content": "d" * 100}]}


def lines(row: dict[str, Any], count: int = 40) -> bytes:
    return (json.dumps(row) + "\n").encode() * count


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", lines(CHAT)),
        ("a.json", json.dumps([CHAT] * 40).encode()),
        ("a.jsonl.gz", gzip.compress(lines(CHAT))),
        ("a.jsonl.bz2", bz2.compress(lines(CHAT))),
        ("a.json.xz", lzma.compress(json.dumps([CHAT] * 40, indent=1).encode())),
    ],
)
def test_rows_of_a_whole_file_are_counted(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    found = guess(DataSet(path=str(tmp_path / name)), purpose="train")
    assert found.rows == pytest.approx(40, abs=1) and found.supervised == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("row", "share"),
    [
        ({"conversations": [{"from": "human", "value": "abc"}, {"from": "gpt", "value": "d"}]}, 0.25),
        ({"instruction": "ab", "input": "c", "output": "d"}, 0.25),
        ({"question": "abc", "answer": "d", "other": "much longer than that"}, 0.25),
        ({"text": "abc"}, 1.0),
        ({"nothing": 1}, SUPERVISED_SHARE),
    ],
)
def test_every_format_tells_what_is_learned(tmp_path: Path, row: dict[str, Any], share: float) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(row))
    assert guess(DataSet(path=str(tmp_path / "a.jsonl")), purpose="train").supervised == pytest.approx(share)


def test_rows_that_hold_tokens_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"input_ids": [1] * 10, "labels": [-100] * 6 + [1] * 4}))
    found = guess(DataSet(path=str(tmp_path / "a.jsonl")), purpose="train")
    assert (found.rows, found.tokens, found.supervised) == (40, 10, 0.4)


def test_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,completion\n" + "abc,d\n" * 40)
    found = guess(DataSet(path=str(tmp_path / "a.csv")), purpose="train")
    assert found.rows == pytest.approx(40, abs=1) and found.supervised == pytest.approx(0.25)


def test_folders_and_patterns_take_their_files_together(tmp_path: Path) -> None:
    for name in ("train-0.jsonl", "train-1.jsonl", "validation.jsonl"):
        (tmp_path / name).write_bytes(lines(CHAT))
    (tmp_path / "README.md").write_text("no data")
    assert guess(DataSet(path=str(tmp_path)), purpose="train").rows == pytest.approx(80, abs=2)
    assert guess(DataSet(path=str(tmp_path)), purpose="eval").rows == pytest.approx(40, abs=1)
    found = guess(DataSet(path=str(tmp_path / "*.jsonl")), purpose="train")
    assert found.rows == pytest.approx(120, abs=2) and "3 files" in found.reason


def test_what_can_not_be_read_is_assumed(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + b"x" * 80_000)
    assert guess(DataSet(path=str(tmp_path / "a.parquet")), purpose="train").rows == 100
    (tmp_path / "a.jsonl.gz").write_bytes(b"no gzip")
    assert guess(DataSet(path=str(tmp_path / "a.jsonl.gz")), purpose="train").rows == 1
    (tmp_path / "a.jsonl.zst").write_bytes(b"x" * 50_000)
    assert guess(DataSet(path=str(tmp_path / "a.jsonl.zst")), purpose="train").rows == 100
    hub = guess(DataSet(path="openai/gsm8k"), purpose="train")
    assert hub.rows == HUB_ROWS and "hub" in hub.reason
    assert guess(DataSet(path=str(tmp_path / "none" / "*.jsonl")), purpose="train").rows == 1


def with_sets(folder: Path, rules: dict[str, dict[str, Any]], **data: Any) -> ResolvedSpec:
    """A run whose training sets have 40 rows each."""
    sets = {}
    for name, rule in rules.items():
        (folder / f"{name}.jsonl").write_bytes(lines(CHAT))
        sets[name] = TrainingSet(path=str(folder / f"{name}.jsonl"), **rule)
    resolved = run()
    changed = dataclasses.replace(resolved.spec.data, train=None, train_sets=sets, **data)
    return dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, data=changed), cache_dir=str(folder / "cache"))


@pytest.mark.parametrize(
    ("rules", "samples"),
    [
        ({"a": {}, "b": {}}, 80),
        ({"a": {"epochs": 2.0}, "b": {"samples": 10}}, 90),
        ({"a": {"weight": 3.0}, "b": {"weight": 1.0}}, 80),
        ({"a": {"epochs": 0.5}}, 20),
    ],
)
def test_several_sets_count_as_they_are_drawn(tmp_path: Path, rules: dict[str, dict[str, Any]], samples: int) -> None:
    resolved = with_sets(tmp_path, rules)
    found = training_lengths(resolved)
    assert found.samples == samples and found.is_assumed
    assert all(name in found.origin for name in rules)
    assert run_data(resolved).train == found


def test_draws_agree_with_those_of_the_core() -> None:
    from ftcore.batch.mix import draws_an_epoch

    sizes = {"a": 1000, "b": 333, "c": 50}
    for rules in (
        {name: TrainingSet(path=name, weight=weight) for name, weight in (("a", 0.2), ("b", 0.5), ("c", 0.3))},
        {"a": TrainingSet(path="a", samples=77), "b": TrainingSet(path="b", epochs=1.5), "c": TrainingSet(path="c")},
    ):
        exact = epoch_draws(sizes, rules)
        assert {name: pytest.approx(count, abs=1) for name, count in draws_an_epoch(sizes, rules).items()} == exact


def test_what_is_split_makes_more_samples(tmp_path: Path) -> None:
    dropped, split = (training_lengths(with_sets(tmp_path, {"a": {}}, max_length=32, overlong=rule)) for rule in ("drop", "split"))
    assert split.samples > dropped.samples == 40 and split.tokens > 2 * dropped.tokens and split.mean <= 32
