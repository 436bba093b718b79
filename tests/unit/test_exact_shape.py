"""`plan --exact`: a model of any architecture is built without memory, and its parameters are those that config.json would have told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcore.exact_shape import read_config, shape_facts
from ftcore.spec.builtin_models import TINY_LLAMA
from launcher.memory.exact_shape import shape_of_facts
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
    exact, read = shape_of_facts(shape_facts(read_config(str(folder(tmp_path, config)), "main", with_code=False))), read_shape(config)
    assert parts(exact) == parts(read)
    assert replace(exact, tensors=(), norm="", parallel=False, intermediate=0, expert_intermediate=0, context=0, activation="") == replace(
        read, tensors=(), norm="", parallel=False, intermediate=0, expert_intermediate=0, context=0, activation=""
    )


def test_the_built_in_model() -> None:
    assert shape_of_facts(shape_facts(read_config(TINY_LLAMA, "main", with_code=False))).parameters == 855_168
