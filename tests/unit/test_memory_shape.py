"""The sizes read from config.json are those of transformers' own models, parameter by parameter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ftcore.spec.builtin_models import TINY_LLAMA_CONFIG
from ftcore.spec.errors import SpecError
from launcher.memory.shape import Linear, ModelShape, read_shape
from launcher.memory.shape_families import RECIPES
from tests.unit.published_models import REAL

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 100, "n_positions": 32, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in RECIPES if family not in ("qwen2_moe", "qwen3_moe", "phi")),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24, "tie_word_embeddings": True}),
    ("llama", {"num_key_value_heads": None}),
    ("qwen2", {"num_key_value_heads": None}),
    ("qwen3", {"attention_bias": True}),
    ("gemma2", {"attention_bias": True, "head_dim": 8, "tie_word_embeddings": False}),
    ("gemma3_text", {"head_dim": 16}),
    ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 8}),
    ("qwen2_moe", {"num_experts": 5, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 72, "qkv_bias": False}),
    ("qwen2_moe", {"num_experts": 5, "moe_intermediate_size": 40, "decoder_sparse_step": 2}),
    ("qwen3_moe", {"num_experts": 6, "moe_intermediate_size": 40, "mlp_only_layers": [1]}),
    ("qwen3_moe", {"num_experts": 6, "moe_intermediate_size": 40, "attention_bias": True}),
    ("phi", {"num_key_value_heads": None}),
    ("phi", {"qk_layernorm": True}),
    ("starcoder2", {"use_bias": False}),
    ("gpt2", GPT2),
    ("gpt2", GPT2 | {"n_inner": 80, "tie_word_embeddings": False}),
    ("gpt_neox", {}),
    ("gpt_neox", {"attention_bias": False, "tie_word_embeddings": True}),
]


def built(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every parameter of transformers' model."""
    rest = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **rest))
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def read(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every parameter that `shape` knows of."""
    return {name: tensor.shape for tensor in shape.tensors for name in tensor.names()}


@pytest.mark.parametrize(("family", "differs"), FAMILIES, ids=lambda value: value if isinstance(value, str) else ",".join(value))
def test_every_parameter_of_each_family(family: str, differs: dict[str, Any]) -> None:
    config = {"model_type": family, **(SMALL if family != "gpt2" else {}), **differs}
    shape = read_shape(config)
    assert read(shape) == built(config)
    assert shape.parameters == sum(tensor.total for tensor in shape.tensors)


@pytest.mark.parametrize("name", REAL)
def test_known_totals_of_published_models(name: str) -> None:
    total, config = REAL[name]
    assert read_shape(config).parameters == total


@pytest.mark.parametrize("name", ["Llama-3-8B", "Qwen3-30B-A3B", "gemma-2b", "gpt2", "Phi-3-mini"])
def test_published_models_are_built_alike(name: str) -> None:
    _, config = REAL[name]
    assert read(read_shape(config)) == built(config)


def test_what_a_shape_says_of_its_parts() -> None:
    shape = read_shape(REAL["Llama-3-8B"][1])
    assert shape.embedding_parameters == shape.head_parameters == 128256 * 4096
    assert shape.layer_parameters == 218_112_000
    assert [linear.name for linear in shape.linears] == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert shape.linears[1] == Linear(name="k_proj", rows_out=1024, columns_in=4096, a_layer=1, kind="attention", module="linear", bias=False, layers=32)
    assert shape.head_dim == 128
    assert shape.active_parameters == shape.parameters


def test_experts() -> None:
    shape = read_shape(REAL["Mixtral-8x7B"][1])
    assert shape.active_parameters == 12_879_925_248
    experts = [linear for linear in shape.linears if linear.kind == "expert"]
    assert [(linear.name, linear.rows_out, linear.columns_in, linear.a_layer) for linear in experts] == [
        ("gate_up_proj", 28672, 4096, 8),
        ("down_proj", 4096, 14336, 8),
    ]


def test_the_built_in_model() -> None:
    assert read(read_shape(TINY_LLAMA_CONFIG)) == built(TINY_LLAMA_CONFIG)


def test_conv1d_matrices_are_turned() -> None:
    (attention,) = [linear for linear in read_shape({"model_type": "gpt2", **GPT2}).linears if linear.name == "c_attn"]
    assert (attention.rows_out, attention.columns_in, attention.bias) == (192, 64, True)


def test_an_unknown_family_is_told_with_a_way_out() -> None:
    with pytest.raises(SpecError, match=r"'mamba' are not known[\s\S]*--exact[\s\S]*llama"):
        read_shape({"model_type": "mamba"})
    with pytest.raises(SpecError, match="without model_type"):
        read_shape({})


def test_every_wrong_size_is_named_at_once() -> None:
    config = {"model_type": "llama", "hidden_size": "64", "num_attention_heads": 0, "num_hidden_layers": 3, "tie_word_embeddings": 1, "intermediate_size": 10}
    with pytest.raises(SpecError) as caught:
        read_shape(config)
    text = str(caught.value)
    assert len(caught.value.problems) == 4
    for part in ("hidden_size is '64'", "num_attention_heads is '0'", "has no vocab_size", "tie_word_embeddings is '1'"):
        assert part in text


def test_heads_that_do_not_divide_and_lists_that_are_none() -> None:
    with pytest.raises(SpecError, match=r"num_attention_heads \(5\) does not divide 64"):
        read_shape({"model_type": "llama", **SMALL, "num_attention_heads": 5})
    with pytest.raises(SpecError, match="mlp_only_layers is"):
        read_shape({"model_type": "qwen3_moe", **SMALL, "mlp_only_layers": "1"})


@pytest.mark.parametrize("layers", [5000, 10**15])
def test_more_layers_than_any_model_has_are_refused(layers: int) -> None:
    with pytest.raises(SpecError, match="num_hidden_layers is"):
        read_shape({"model_type": "llama", **SMALL, "num_hidden_layers": layers})
