"""Metrics with known answers, the interval of a difference, and which results may be compared."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from ftcore.scoring.answer_metrics import metrics_for
from ftcore.scoring.compare import compare
from ftcore.scoring.paired import paired_difference
from ftcore.scoring.result import ModelIdentity, Result, RowResult, Settings, read_result, read_rows, set_result
from ftcore.scoring.table import render_comparison, render_result
from ftcore.spec.errors import CheckpointError, DataError, SpecError
from ftcore.spec.evaluation import EvaluationDir


@pytest.mark.parametrize(
    ("metric", "expected", "answer", "score"),
    [
        ("exact_match", " a b\n", "a b", 1.0),
        ("exact_match", "a b", "a  b", 0.0),
        ("exact_match", '{"a": 1, "b": null}', '{"b":null,"a":1}', 1.0),
        ("exact_match", '{"a": 1}', '{"a": true}', 0.0),
        ("exact_match", '{"a": 1}', "a: 1", 0.0),
        ("valid_json", "", '{"a": [1]}', 1.0),
        ("valid_json", "", "[1]", 1.0),
        ("valid_json", "", "Sure! {}", 0.0),
        ("valid_json", "", '{"a": NaN}', 0.0),
        ("valid_json", "", "[" * 100_000, 0.0),
        ("regex", "", " 2024-01-02 ", 1.0),
        ("regex", "", "on 2024-01-02", 0.0),
        ("rouge_l", "the cat sat on the mat", "the cat on the mat", 10 / 11),
        ("rouge_l", "a", "b", 0.0),
    ],
)
def test_metrics(metric: str, expected: str, answer: str, score: float) -> None:
    assert metrics_for([metric], r"\d{4}-\d\d-\d\d")[metric](expected, answer) == pytest.approx(score)


def test_rouge_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    with pytest.raises(SpecError, match=r"ftlaunch\[eval\]"):
        metrics_for(["rouge_l"], "")


def test_the_interval_is_that_of_the_normal_distribution() -> None:
    """For many rows the bootstrap's interval of a mean is mean ± 1.96 · s / sqrt(n)."""
    gaps = np.random.default_rng(1).normal(0.3, 2.0, size=900)
    found = paired_difference(np.zeros(900), gaps, np.ones(900))
    half = 1.96 * gaps.std() / 30
    assert found.value == pytest.approx(gaps.mean())
    assert found.low == pytest.approx(gaps.mean() - half, abs=0.05 * half) and found.high == pytest.approx(gaps.mean() + half, abs=0.05 * half)
    assert found == paired_difference(np.zeros(900), gaps, np.ones(900))


def test_a_loss_is_weighted_by_tokens() -> None:
    found = paired_difference(np.array([1.0, 0, 0, 0, 0, 0]), np.zeros(6), np.array([1.0, 9, 9, 9, 9, 9]))
    assert found.value == pytest.approx(-1 / 46)
    assert paired_difference(np.zeros(4), np.ones(4), np.ones(4)).low is None


def rows(*losses: float, tokens: int = 2, scored: bool = True) -> list[RowResult]:
    return [
        RowResult(row=number, loss_sum=loss, tokens=tokens, scores={"exact_match": float(loss < 1)} if scored else {}) for number, loss in enumerate(losses, 1)
    ]


def write(folder: Path, sets: dict[str, list[RowResult]], *, fingerprint: str = "f" * 64, most: int = 8) -> Path:
    settings = Settings(world_size=2, zero_stage=0, precision="fp32", metrics=("exact_match",), max_new_tokens=most, max_rows=9)
    model = ModelIdentity(kind="model", name=folder.name, base="base", base_digest="d")
    found = {name: set_result(held, path="eval.jsonl", fingerprint=fingerprint) for name, held in sets.items()}
    result = Result(model=model, settings=settings, sets=found, seconds=1.0, created="now")
    for name, held in sets.items():
        path = EvaluationDir(folder).rows(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(row.to_line() for row in held))
    EvaluationDir(folder).result.write_text(result.to_json())
    assert read_result(folder) == (folder, result) == read_result(folder / "evaluation.json")
    assert "exact_match" in render_result(result)
    return folder


def test_better_same_and_worse(tmp_path: Path) -> None:
    before = write(tmp_path / "a", {"x": rows(*[3.0] * 6), "y": rows(*[0.5] * 6), "z": rows(1, 2, 3, 4, 5, 6), "w": rows(*[1.0] * 6)})
    after = write(tmp_path / "b", {"x": rows(*[0.5] * 6), "y": rows(*[3.0] * 6), "z": rows(2, 1, 4, 3, 6, 5), "v": rows(1.0)})
    found = compare(before, after)
    assert [(line.set, line.metric, line.verdict) for line in found.lines] == [
        *[("x", "loss", "better"), ("x", "exact_match", "better"), ("y", "loss", "worse"), ("y", "exact_match", "worse")],
        *[("z", "loss", "same"), ("z", "exact_match", "same")],
    ]
    assert [line.difference for line in found.lines[:2]] == [pytest.approx(-1.25), pytest.approx(1.0)]
    assert found.left_out == ("set v: only one of the two has it", "set w: only one of the two has it")
    assert "better" in render_comparison(found) and json.loads(found.to_json())["version"] == 1


def test_other_rows_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "a", {"x": rows(1, 2)})
    with pytest.raises(DataError, match="set x: the rows are not the same"):
        compare(one, write(tmp_path / "b", {"x": rows(1, 2)}, fingerprint="e" * 64))
    with pytest.raises(DataError, match="share no held-out set"):
        compare(one, write(tmp_path / "c", {"y": rows(1, 2)}))
    with pytest.raises(DataError, match="name other rows"):
        compare(one, write(tmp_path / "d", {"x": rows(1, 2, tokens=3)}))


def test_answers_of_other_limits_are_left_out(tmp_path: Path) -> None:
    one = write(tmp_path / "a", {"x": rows(1, 2)})
    assert compare(one, write(tmp_path / "b", {"x": rows(1, 2)}, most=9)).left_out == ("set x, exact_match: evaluation.max_new_tokens was 8 and 9",)
    fewer = [*rows(1), RowResult(row=2, loss_sum=2, tokens=2)]
    assert "2 and 1 rows were answered" in compare(one, write(tmp_path / "c", {"x": fewer})).left_out[0]


def test_losses_that_are_not_finite(tmp_path: Path) -> None:
    """K06: perplexity of a loss of 800, and a row whose loss is infinite."""
    assert set_result(rows(1600.0), path="", fingerprint="").perplexity is None
    folder = write(tmp_path / "a", {"x": rows(1, math.inf)})
    assert read_rows(folder, "x")[1].loss_sum == math.inf and read_result(folder)[1].sets["x"].loss is None
    line = compare(folder, write(tmp_path / "b", {"x": rows(1, 2)})).lines[0]
    assert (line.verdict, line.difference) == ("better", None)


@pytest.mark.parametrize("text", ["", "[]", '{"version": 9}', '{"version": 1}'])
def test_what_is_no_result(tmp_path: Path, text: str) -> None:
    (tmp_path / "evaluation.json").write_text(text)
    with pytest.raises(CheckpointError, match="no result of an evaluation"):
        read_result(tmp_path)
    with pytest.raises(CheckpointError, match="can't read the rows"):
        read_rows(tmp_path, "x")
