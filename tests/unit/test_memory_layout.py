"""What is trained, and what a quantised base takes: equal to what PEFT and bitsandbytes really build."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from transformers import AutoConfig, AutoModelForCausalLM

from ftcore.model.adapters import attach_adapters
from ftcore.model.groups import freeze_matching
from ftcore.spec.sections import AdapterSection, DataSection, MethodSection, ModelSection, OptimizerSection, ParameterGroup, Spec, TrainingSet, TrainSection
from launcher.memory.layout import Layout, model_layout, quantised_bytes
from launcher.memory.shape import read_shape
from tests.unit.published_models import REAL
from tests.unit.test_memory_shape import FAMILIES, SMALL

LLAMA = {"model_type": "llama", **SMALL}
TIED = {**LLAMA, "tie_word_embeddings": True}
METHODS: list[dict[str, Any]] = [
    {"use_dora": True},
    {"target_modules": ("q_proj", "v_proj")},
    {"target_modules": ("embed_tokens", "q_proj")},
    {"target_modules": ("embed_tokens", "q_proj"), "use_dora": True},
    {"target_modules": ("lm_head", "q_proj")},
    {"target_modules": ("layers.1.mlp.up_proj",)},
    {"modules_to_save": ("lm_head",)},
    {"modules_to_save": ("lm_head", "embed_tokens")},
    {"modules_to_save": ("norm",)},
    {"modules_to_save": ("layers.2.input_layernorm",)},
    {"adapters": {"a": AdapterSection(r=2), "b": AdapterSection()}},
]


def spec_of(method: MethodSection, *groups: ParameterGroup, dtype: str = "float32", precision: str = "fp32") -> Spec:
    return Spec(
        model=ModelSection(model_name_or_path="a-model", dtype=dtype),
        data=DataSection(train=TrainingSet(path="rows.jsonl")),
        method=method,
        optimizer=OptimizerSection(parameter_groups=groups),
        train=TrainSection(precision=precision),
    )


def layout_of(config: dict[str, Any], spec: Spec) -> Layout:
    return model_layout(spec, read_shape(config))


def built(config: dict[str, Any], spec: Spec) -> torch.nn.Module:
    """The model that the core trains, with weights of its own."""
    rest = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **rest))
    whole: torch.nn.Module = model if spec.method.type == "full" else attach_adapters(model, spec.method, spec.train)
    freeze_matching(whole, spec.optimizer)
    return whole


def require_same(config: dict[str, Any], spec: Spec) -> None:
    model, layout = built(config, spec), layout_of(config, spec)
    real = {name: tuple(parameter.shape) for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name: held.tensor.shape for held in layout.held if held.trained for name in held.tensor.names()} == real
    assert layout.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert layout.trained == sum(math.prod(shape) for shape in real.values())


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did not match:RuntimeWarning")
@pytest.mark.parametrize(("family", "differs"), FAMILIES, ids=lambda value: value if isinstance(value, str) else ",".join(value))
def test_all_linear_of_each_family(family: str, differs: dict[str, Any]) -> None:
    config = {"model_type": family, **(SMALL if family != "gpt2" else {}), **differs}
    require_same(config, spec_of(MethodSection(type="lora", r=4)))


@pytest.mark.parametrize("config", [LLAMA, TIED], ids=["untied", "tied"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: ",".join(f"{key}={value}" for key, value in method.items())[:60])
def test_what_a_method_trains(config: dict[str, Any], method: dict[str, Any]) -> None:
    require_same(config, spec_of(MethodSection(type="lora", r=4, **method)))


def test_frozen_groups() -> None:
    full = MethodSection()
    frozen = [ParameterGroup(pattern=pattern, freeze=True) for pattern in ("*embed_tokens*", "*layers.0.*", "*norm*")]
    require_same(LLAMA, spec_of(full, *frozen))
    # The first pattern that matches decides.
    require_same(LLAMA, spec_of(full, ParameterGroup(pattern="*layers.0.mlp*", learning_rate=1.0), *frozen))


def test_llama_3_8b_with_lora() -> None:
    layout = layout_of(REAL["Llama-3-8B"][1], spec_of(MethodSection(type="lora", r=16), dtype="bfloat16", precision="bf16"))
    assert layout.trained == 41_943_040
    assert layout.parameters - layout.trained == 8_030_261_248
    assert sum(held.whole_bytes * held.copies for held in layout.trained_ones()) == 2 * layout.trained


@pytest.mark.parametrize(("out", "inner"), [(64, 64), (100, 130), (7, 9), (576, 1536)])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize(("storage", "dtype"), [("uint8", torch.uint8), ("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_four_bits_as_bitsandbytes_holds_them(out: int, inner: int, double: bool, storage: str, dtype: torch.dtype) -> None:
    if (out * inner + 1) // 2 % dtype.itemsize:
        pytest.skip("bitsandbytes can't view an odd number of bytes as that type")
    layer = Linear4bit(inner, out, bias=False, compress_statistics=double, quant_type="nf4", quant_storage=dtype).to("cpu")
    state = layer.weight.quant_state
    tables = [state.absmax, state.code, *([state.offset, state.state2.absmax, state.state2.code] if double else [])]
    packed, beside = quantised_bytes(out * inner, MethodSection(type="qlora", double_quant=double, storage_dtype=storage))
    assert packed == layer.weight.nbytes
    assert beside == sum(table.nbytes for table in tables)


def test_eight_bits_as_bitsandbytes_holds_them() -> None:
    layer = Linear8bitLt(130, 100, bias=False, has_fp16_weights=False).to("cpu")
    config = {**LLAMA, "hidden_size": 130, "num_attention_heads": 2, "intermediate_size": 100}
    layout = layout_of(config, spec_of(MethodSection(type="qlora", bits=8), dtype="bfloat16", precision="bf16"))
    gate = next(held for held in layout.held if held.tensor.name.endswith("gate_proj.weight"))
    assert (gate.whole_bytes, gate.table_bytes) == (layer.weight.nbytes, layer.weight.SCB.nbytes)


def test_a_quantised_base_keeps_its_head_and_norms() -> None:
    layout = layout_of(LLAMA, spec_of(MethodSection(type="qlora"), dtype="bfloat16", precision="bf16"))
    by_name = {held.tensor.name.removeprefix("base_model.model."): held for held in layout.held}
    assert by_name["lm_head.weight"].whole_bytes == 2 * 100 * 64
    assert by_name["model.embed_tokens.weight"].whole_bytes == 2 * 100 * 64
    assert by_name["model.norm.weight"].whole_bytes == 2 * 64
    assert by_name["model.layers.{}.mlp.gate_proj.weight"].whole_bytes == 96 * 64 / 2


def test_a_quantised_llama_3_8b_takes_half_a_byte_a_number() -> None:
    layout = layout_of(REAL["Llama-3-8B"][1], spec_of(MethodSection(type="qlora"), dtype="bfloat16", precision="bf16"))
    linear = [held for held in layout.frozen_ones() if held.table_bytes]
    share = sum((held.whole_bytes + held.table_bytes) * held.copies for held in linear) / sum(held.total for held in linear)
    assert share == pytest.approx(0.516, abs=2e-4)


def test_experts_stay_whole_under_qlora() -> None:
    config = {"model_type": "mixtral", **SMALL, "num_local_experts": 4}
    layout = layout_of(config, spec_of(MethodSection(type="qlora"), dtype="bfloat16", precision="bf16"))
    experts = [held for held in layout.frozen_ones() if held.tensor.kind == "expert"]
    assert experts
    assert all(held.whole_bytes == 2 * held.numel for held in experts)


def test_a_replaced_method_is_a_what_if() -> None:
    spec = spec_of(MethodSection())
    assert layout_of(LLAMA, spec).trained == read_shape(LLAMA).parameters
    assert layout_of(LLAMA, replace(spec, method=MethodSection(type="lora", r=4))).trained == 11136
