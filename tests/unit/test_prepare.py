"""`python -m ftcore.prepare RUN`: from a resolved spec to prepared.json and the plan, or one list of mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcore.data.cache import SampleSet
from ftcore.data.prepared import Prepared, load_prepared
from ftcore.prepare import check_fits, prepare
from ftcore.spec.errors import CheckpointError, DataError
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.run_dir import RunDir, write_atomic
from ftcore.spec.sections import BatchSection, DataSection, DataSet, ModelSection, Spec, TrainSection

REPOSITORY = Path(__file__).resolve().parents[2]
CASES = REPOSITORY / "tests" / "cases" / "data"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def resolved(cache: Path, train: str, evaluation: str | None, *, max_length: int = 512) -> ResolvedSpec:
    data = DataSection(train=DataSet(path=train), eval=None if evaluation is None else DataSet(path=evaluation), max_length=max_length)
    spec = Spec(
        model=ModelSection(model_name_or_path="builtin:tiny-llama", dtype="float32"),
        data=data,
        batch=BatchSection(global_batch_size=2, micro_batch_tokens=1024),
        train=TrainSection(max_steps=3, precision="fp32"),
    )
    return ResolvedSpec(spec=spec, hosts=(Host(name="localhost", slots=2),), sources={}, cache_dir=str(cache))


def run(folder: Path, spec: ResolvedSpec) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and events of the real process."""
    write_atomic(RunDir(folder).resolved, spec.to_json())
    reader, writer = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "ftcore.prepare", str(folder)],
        cwd=REPOSITORY,
        pass_fds=[writer],
        env={**os.environ, "FTLAUNCH_EVENTS_FD": str(writer)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as pipe:
            events = [json.loads(line) for line in pipe]
    return process.returncode, events


def test_prepare_process(cache: Path, tmp_path: Path) -> None:
    status, events = run(tmp_path, resolved(cache, "builtin:extraction/train", "builtin:extraction/eval"))
    assert status == 0
    run_dir = RunDir(tmp_path)
    prepared = load_prepared(run_dir.prepared)
    assert prepared.to_json() == run_dir.prepared.read_text()
    assert (prepared.train.rows, prepared.train.samples) == (2000, 2000)
    assert prepared.eval is not None
    assert prepared.eval.samples == 200
    assert prepared.model.name == "builtin:tiny-llama"
    train = SampleSet.open(prepared.train.arrow)
    assert (len(train), train.fingerprint) == (2000, prepared.train.fingerprint)
    assert json.loads(run_dir.plan_json.read_text())["total_updates"] == 3
    assert "2,000" in run_dir.plan_txt.read_text()
    progress = [event for event in events if event["event"] == "progress"]
    assert {event["stage"] for event in progress} == {"prepare"}
    assert {"train: tokenising", "eval: tokenising"} <= {event["text"] for event in progress}
    assert (progress[-1]["done"], progress[-1]["total"]) == (200, 200)


def test_mistakes_of_both_sets_at_once(cache: Path, tmp_path: Path) -> None:
    status, events = run(tmp_path, resolved(cache, str(CASES / "truncated_line_3.jsonl"), str(CASES / "empty.jsonl")))
    assert status == 4
    (error,) = [event for event in events if event["event"] == "error"]
    assert error["kind"] == "DataError"
    assert [problem["file"].rsplit("/", 1)[-1] for problem in error["problems"]] == ["truncated_line_3.jsonl", "empty.jsonl"]
    assert error["traceback"] == ""
    assert not RunDir(tmp_path).prepared.exists()


def test_no_evaluation(cache: Path) -> None:
    prepared = prepare(resolved(cache, str(CASES / "bom.jsonl"), None))
    assert prepared.eval is None
    assert Prepared(train=prepared.train, eval=None, model=prepared.model) == prepared


def test_samples_that_the_model_can_not_take(cache: Path, tmp_path: Path) -> None:
    """Checked on real lengths and ids, before a rank would fail on an index."""
    prepared = prepare(resolved(cache, str(CASES / "bom.jsonl"), None))
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 20, "vocab_size": 100}))
    with pytest.raises(DataError) as caught:
        check_fits("train", prepared.train, replace(prepared.model, path=str(tmp_path)))
    positions, vocabulary = caught.value.problems
    assert "the model has 20 positions" in positions.what
    assert "the model's vocab_size is 100" in vocabulary.what


@pytest.mark.parametrize("text", [None, "{", "[]", '{"version": 99}', '{"version": 1, "train": {}, "eval": null, "model": {}}', '{"version": 1, "more": 1}'])
def test_prepared_file_that_can_not_be_used(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "prepared.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CheckpointError, match="not a prepared run"):
        load_prepared(path)
