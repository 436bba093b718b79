"""`plan --exact`: a model of any architecture is built without memory, and its parameters are those that config.json would have told."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcore.exact_shape import main, model_facts
from ftcore.spec.builtin_models import TINY_LLAMA
from ftcore.spec.errors import SpecError
from ftcore.spec.sections import ModelSection
from launcher.memory import exact_shape as launched
from launcher.memory.exact_shape import PRINTED, exact_shape, shape_of_facts
from launcher.memory.shape import ModelShape, read_shape
from tests.unit.test_memory_shape import GPT2, SMALL

KNOWN: list[dict[str, Any]] = [
    {"model_type": "llama", **SMALL, "tie_word_embeddings": True},
    {"model_type": "qwen3_moe", **SMALL, "num_experts": 6, "moe_intermediate_size": 40, "mlp_only_layers": [1]},
    {"model_type": "gpt2", **GPT2},
    {"model_type": "phi", **SMALL},
]


def folder(path: Path, config: dict[str, Any]) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    return path


def parts(shape: ModelShape) -> dict[str, tuple[tuple[int, ...], str, str]]:
    return {name: (tensor.shape, tensor.kind, tensor.module) for tensor in shape.tensors for name in tensor.names()}


@pytest.mark.parametrize("config", KNOWN, ids=lambda config: config["model_type"])
def test_a_known_family_has_the_same_parts(config: dict[str, Any], tmp_path: Path) -> None:
    exact, read = shape_of_facts(model_facts(str(folder(tmp_path, config)), "main", with_code=False)), read_shape(config)
    assert parts(exact) == parts(read)
    assert replace(exact, tensors=(), norm="", parallel=False, intermediate=0, expert_intermediate=0, context=0, activation="") == replace(
        read, tensors=(), norm="", parallel=False, intermediate=0, expert_intermediate=0, context=0, activation=""
    )


def test_an_unknown_family_in_a_process_of_its_own(tmp_path: Path) -> None:
    config = {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    with pytest.raises(SpecError, match="--exact"):
        read_shape(config)
    shape = exact_shape(ModelSection(model_name_or_path=str(folder(tmp_path, config))))
    assert (shape.family, shape.layers, shape.heads) == ("falcon", 2, 4)
    assert any(linear.name == "query_key_value" for linear in shape.linears)


def test_the_built_in_model_needs_no_process() -> None:
    assert exact_shape(ModelSection(model_name_or_path=TINY_LLAMA)).parameters == 855_168


def test_what_can_not_be_built(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(folder(tmp_path, {"model_type": "nosuch"}))
    assert main([place, "main", "0"]) == 1
    assert "nosuch" in capsys.readouterr().err
    model = ModelSection(model_name_or_path=place)
    ended = subprocess.CompletedProcess([], 1, "", "ValueError: a reason\n")
    monkeypatch.setattr(launched.subprocess, "run", lambda *_arguments, **_options: ended)
    with pytest.raises(SpecError, match="can't be built: ValueError: a reason"):
        exact_shape(model)

    def waits(*_arguments: object, **_options: object) -> None:
        raise subprocess.TimeoutExpired([], 1.0)

    monkeypatch.setattr(launched.subprocess, "run", waits)
    with pytest.raises(SpecError, match="took more than 600 s"):
        exact_shape(model)


def test_what_is_printed_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder(tmp_path, KNOWN[0])), "main", "0"]) == 0
    line = capsys.readouterr().out
    assert shape_of_facts(json.loads(line.removeprefix(PRINTED))).parameters == read_shape(KNOWN[0]).parameters
