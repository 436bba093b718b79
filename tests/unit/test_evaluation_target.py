"""What is evaluated, by which spec, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ftcore.spec.errors import CheckpointError, ClusterError, SpecError
from ftcore.spec.evaluation import load_request
from launcher.evaluating import evaluation_folder, inference_config, require_result
from launcher.evaluation_target import Asked, kind_of, make_request
from launcher.resolve import Options, read_and_resolve


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_run(folder: Path, *sets: str) -> None:
    folder.mkdir()
    (folder / "resolved.json").write_text(read_and_resolve(Options(sets=sets)).resolved.to_json())


def test_kinds(here: Path) -> None:
    make_run(here / "run")
    (here / "adapter").mkdir()
    (here / "adapter" / "adapter_config.json").write_text("{}")
    assert [kind_of(name) for name in ("run", "adapter", "base", "owner/name", "builtin:tiny-llama")] == ["run", "adapter", "base", "model", "model"]


def test_a_run_brings_its_model_and_method(here: Path) -> None:
    make_run(here / "run", "method.type=lora", "method.r=4", "train.precision=fp32", "cluster.slots=2")
    request, resolution = make_request(Asked(name="run", update=3), Options(zero_stage=3, sets=("cluster.slots=1",)))
    spec = request.resolved.spec
    assert (request.kind, request.path, request.update) == ("run", str(here / "run"), 3)
    assert (spec.method.r, spec.train.precision, spec.zero.stage, request.resolved.world_size) == (4, "fp32", 3, 1)
    assert resolution.origin == "run/resolved.json" and "/tmp/ftlaunch-evaluate" not in str(resolution.resolved.sources)
    (here / "request.json").write_text(request.to_json())
    assert load_request(here / "request.json") == request
    assert evaluation_folder(request, None).path.parent == here / "run" / "evaluations"


def test_the_base_is_evaluated_without_an_adapter() -> None:
    request, _ = make_request(Asked(name="base"), Options(sets=("method.type=lora",)))
    assert (request.kind, request.name, request.resolved.spec.method.type) == ("base", "builtin:tiny-llama", "full")
    assert make_request(Asked(name="builtin:tiny-llama"), Options())[0].kind == "base"
    other = make_request(Asked(name="owner/name"), Options())[0]
    assert (other.kind, other.resolved.spec.model.model_name_or_path) == ("model", "owner/name")


@pytest.mark.parametrize(
    ("asked", "sets", "words"),
    [
        (Asked(name="./nowhere"), (), "no such file or folder"),
        (Asked(name="base", best=True), (), "--best choose nothing"),
        (Asked(name="run", update=1, best=True), (), "name two checkpoints"),
        (Asked(name="run", adapter="x"), (), "no adapter 'x'"),
        (Asked(name="base"), ("data.eval=null",), "no held-out rows"),
        (Asked(name="run"), ("train.precision=fp7",), "fp7"),
        (Asked(name="adapter"), (), "no adapter_model.safetensors"),
    ],
)
def test_refused(asked: Asked, sets: tuple[str, ...], words: str, here: Path) -> None:
    make_run(here / "run")
    (here / "adapter").mkdir()
    (here / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(SpecError, match=words):
        make_request(asked, Options(sets=sets))


def test_one_of_several_adapters(here: Path) -> None:
    make_run(here / "run", "method.type=lora", "method.adapters={a: {r: 4}, b: {r: 8}}")
    with pytest.raises(SpecError, match="several adapters"):
        make_request(Asked(name="run"), Options())
    assert make_request(Asked(name="run", adapter="b"), Options())[0].adapter == "b"


def test_a_wrong_hostfile_alone_is_the_clusters(here: Path) -> None:
    (here / "hosts").write_text("a slots=0\n")
    with pytest.raises(ClusterError):
        make_request(Asked(name="base"), Options(hosts="hosts"))


def test_rouge_is_asked_for_and_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None if name == "rouge_score" else find(name, package))
    with pytest.raises(SpecError, match=r"rouge-score.*\n.*pip install 'ftlaunch\[eval\]'"):
        make_request(Asked(name="base"), Options(sets=("evaluation.metrics=[rouge_l]",)))


def test_earlier_results_and_folders(here: Path) -> None:
    with pytest.raises(CheckpointError, match="no result of an evaluation"):
        require_result(here)
    (here / "evaluation.json").write_text('{"version": "x"}')
    with pytest.raises(CheckpointError, match="is no result"):
        require_result(here)
    (here / "evaluation.json").write_text('{"version": 1}')
    assert require_result(here) == str(here)
    with pytest.raises(CheckpointError, match="not an evaluation"):
        load_request(here / "evaluation.json")
    request, _ = make_request(Asked(name="base"), Options())
    first, second = (evaluation_folder(replace(request, name="x"), None).path for _ in range(2))
    assert first != second and first.parent == here / "evaluations"


def test_inference_needs_no_optimizer() -> None:
    config = json.loads(inference_config('{"optimizer": {}, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_optimizer": {}}}'))
    assert config == {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
