"""`python -m ftcore.prepare RUN`: from a resolved spec to prepared.json and the plan, or one list of mistakes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ftcore.base_check import check_base
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import Prepared, load_prepared
from ftcore.prepare import check_fits, prepare
from ftcore.source import resolve_model_source
from ftcore.spec.errors import CheckpointError, DataError, SpecError
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.run_dir import RunDir, write_atomic
from ftcore.spec.sections import (
    AdapterSection,
    BatchSection,
    DataSection,
    DataSet,
    MethodSection,
    ModelSection,
    ScheduleSection,
    Spec,
    TrainingSet,
    TrainSection,
)

REPOSITORY = Path(__file__).resolve().parents[2]
CASES = REPOSITORY / "tests" / "cases" / "data"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def resolved(cache: Path, train: str, evaluation: str | None, *, max_length: int = 512) -> ResolvedSpec:
    data = DataSection(train=TrainingSet(path=train), eval=None if evaluation is None else DataSet(path=evaluation), max_length=max_length)
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
    assert (prepared.train["train"].rows, prepared.train["train"].samples) == (2000, 2000)
    assert {name: held_out.samples for name, held_out in prepared.eval.items()} == {"eval": 100}
    assert prepared.model.name == "builtin:tiny-llama"
    train = SampleSet.open(prepared.train["train"].arrow)
    assert (len(train), train.fingerprint) == (2000, prepared.train["train"].fingerprint)
    assert json.loads(run_dir.plan_json.read_text())["total_updates"] == 3
    assert "2,000" in run_dir.plan_txt.read_text()
    progress = [event for event in events if event["event"] == "progress"]
    assert {event["stage"] for event in progress} == {"prepare"}
    assert all(any(re.fullmatch(rf"{key}: .* rows in .* rows/s", event["text"]) for event in progress) for key in ("data.train", "data.eval"))
    assert (progress[-1]["done"], progress[-1]["total"]) == (100, 100)


def test_mistakes_of_both_sets_at_once(cache: Path, tmp_path: Path) -> None:
    status, events = run(tmp_path, resolved(cache, str(CASES / "truncated_line_3.jsonl"), str(CASES / "empty.jsonl")))
    assert status == 4
    (error,) = [event for event in events if event["event"] == "error"]
    assert error["kind"] == "DataError"
    assert [problem["file"].rsplit("/", 1)[-1] for problem in error["problems"]] == ["truncated_line_3.jsonl", "empty.jsonl"]
    assert error["traceback"] == ""
    assert not RunDir(tmp_path).prepared.exists()


def test_very_many_mistakes_stand_in_files_of_the_run(cache: Path, tmp_path: Path) -> None:
    """Those of each set in its own; the first ones are shown."""
    for name, count in (("train", 30), ("eval", 21)):
        (tmp_path / f"{name}.jsonl").write_text('{"messages": 1}\n' * count, encoding="utf-8")
    run_dir = RunDir(tmp_path / "run")
    with pytest.raises(DataError) as caught:
        prepare(resolved(cache, str(tmp_path / "train.jsonl"), str(tmp_path / "eval.jsonl")), run_dir.bad_rows)
    assert len(caught.value.problems) == 21 + 21
    for name, count in (("train", 30), ("eval", 21)):
        file = tmp_path / "run" / "bad_rows" / f"data.{name}.txt"
        assert f"all {count} of them stand in {file}" in str(caught.value)
        assert len(file.read_text(encoding="utf-8").splitlines()) == count


def test_no_evaluation(cache: Path) -> None:
    prepared = prepare(resolved(cache, str(CASES / "bom.jsonl"), None))
    assert prepared.eval == {}
    assert Prepared(train=prepared.train, eval={}, model=prepared.model) == prepared


def test_samples_that_the_model_can_not_take(cache: Path, tmp_path: Path) -> None:
    """Checked on real lengths and ids, before a rank would fail on an index."""
    prepared = prepare(resolved(cache, str(CASES / "bom.jsonl"), None))
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 20, "vocab_size": 100}))
    with pytest.raises(DataError) as caught:
        check_fits("train", prepared.train["train"], replace(prepared.model, path=str(tmp_path)))
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


def test_a_schedule_longer_than_the_run(cache: Path, tmp_path: Path) -> None:
    """How many updates an epoch has is known once the rows are counted: 2,000 of them in updates of 500 are four."""
    spec = resolved(cache, "builtin:extraction/train", None).spec
    spec = replace(spec, train=replace(spec.train, max_steps=None, num_train_epochs=1.0), batch=BatchSection(global_batch_size=500))
    spec = replace(spec, schedule=ScheduleSection(warmup_steps=5))
    status, events = run(tmp_path, replace(resolved(cache, "builtin:extraction/train", None), spec=spec))
    (error,) = [event for event in events if event["event"] == "error"]
    [problem] = error["problems"]
    assert (status, problem["where"], problem["fix"]) == (2, "schedule.warmup_steps", "give 4 or less")
    assert problem["what"] == "a warm-up of 5 updates does not end in a run of 4 updates" and not RunDir(tmp_path).plan_json.exists()


NORM = "model.norm.weight"


def changed_model(cache: Path, folder: Path, name: str) -> Spec:
    """A spec of a copy of the tiny Llama with one thing wrong."""
    spec = resolved(cache, "builtin:extraction/train", None).spec
    shutil.copytree(resolve_model_source(spec.model, cache).path, folder)
    weights = load_file(folder / "model.safetensors")
    if name == "missing":
        del weights[NORM]
    elif name == "shape":
        weights[NORM] = torch.zeros(3)
    elif name == "head":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
        weights.pop("lm_head.weight", None)
    elif name == "type":
        (folder / "config.json").write_text('{"model_type": "no_such"}')
    elif name in ("pickle", "damaged pickle"):
        torch.save(weights, folder / "pytorch_model.bin")
        if name == "damaged pickle":
            os.truncate(folder / "pytorch_model.bin", 1000)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if "pickle" in name:
        (folder / "model.safetensors").unlink()
    return replace(spec, model=replace(spec.model, model_name_or_path=str(folder)))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing", f"model is not whole: the weight files lack {NORM}"),
        ("head", "the weight files lack lm_head.weight"),  # J08: none is made up, so that none is ever gathered to be filled
        ("shape", rf"other shapes than config.json says: {NORM} \(3 in the file, 128 in the model\)"),
        ("type", "transformers can't build .*no_such"),
        ("damaged pickle", "pytorch_model.bin is damaged"),
    ],
)
def test_a_base_that_is_not_whole(name: str, reason: str, cache: Path, tmp_path: Path) -> None:
    spec = changed_model(cache, tmp_path / "model", name)
    with pytest.raises(SpecError, match=reason) as caught:
        check_base(spec, resolve_model_source(spec.model, cache), cache)
    assert caught.value.problems[0].where == "model.model_name_or_path"


def test_a_base_of_pickled_weights(cache: Path, tmp_path: Path) -> None:
    spec = changed_model(cache, tmp_path / "model", "pickle")
    check_base(spec, resolve_model_source(spec.model, cache), cache)


def test_several_adapters_with_dora_fit(cache: Path, tmp_path: Path) -> None:
    """The second one, too, is made where the base without memory is."""
    spec = resolved(cache, "builtin:extraction/train", None).spec
    method = MethodSection(type="lora", use_dora=True, adapters={"a": AdapterSection(r=4), "b": AdapterSection(r=8)})
    check_base(replace(spec, method=method), resolve_model_source(spec.model, cache), tmp_path)
    assert len(list((tmp_path / "checked").iterdir())) == 1


def test_that_a_base_fits_is_remembered(cache: Path, tmp_path: Path) -> None:
    spec = resolved(cache, "builtin:extraction/train", None).spec
    source = resolve_model_source(spec.model, cache)
    check_base(spec, source, tmp_path)
    assert len(list((tmp_path / "checked").iterdir())) == 1
    check_base(spec, replace(source, path="/gone"), tmp_path)
    with pytest.raises(SpecError, match="norm is a LlamaRMSNorm"):
        check_base(replace(spec, method=MethodSection(type="lora", target_modules=("norm",))), source, tmp_path)


def test_wrong_targets_end_preparation(cache: Path, tmp_path: Path) -> None:
    wrong = resolved(cache, "builtin:extraction/train", None)
    wrong = replace(wrong, spec=replace(wrong.spec, method=MethodSection(type="lora", modules_to_save=("layers",))))
    status, events = run(tmp_path, wrong)
    (error,) = [event for event in events if event["event"] == "error"]
    assert (status, error["kind"], error["traceback"]) == (2, "SpecError", "")


def test_a_cache_that_can_not_be_written(cache: Path, tmp_path: Path) -> None:
    """A file where a folder of the cache should be stands in for a disk that refuses, as root meets no other."""
    (tmp_path / "models").touch()
    with pytest.raises(DataError, match=r"can't write to the cache: .*\n.*or set FTLAUNCH_CACHE to another folder"):
        prepare(resolved(tmp_path, str(CASES / "bom.jsonl"), None))
    made = prepare(resolved(cache, str(CASES / "bom.jsonl"), None)).train["train"]
    Path(made.arrow).unlink()
    Path(made.arrow).mkdir()
    with pytest.raises(DataError, match=r"can't write to the cache: .*\n.*a folder stands where a file should be"):
        prepare(resolved(cache, str(CASES / "bom.jsonl"), None))
    Path(made.arrow).rmdir()
