"""An adapter read from its files keeps every bit, whatever type the base computes in; and it has a name that PEFT can tell from the model's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.utils.save_and_load import get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from ftcore.model.adapters import attach_adapters, put_on
from ftcore.spec.adapter_file import ADAPTER_WEIGHTS
from ftcore.spec.errors import SpecError
from ftcore.spec.sections import AdapterSection, MethodSection, TrainSection
from launcher.adapter_names import name_problem

SMALL = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)


def make_base(dtype: torch.dtype) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(SMALL).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_values_of_an_adapter_are_not_rounded_to_the_bases_type(dtype: torch.dtype, tmp_path: Path) -> None:
    model = get_peft_model(make_base(torch.float32), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))  # type: ignore[arg-type]
    model.save_pretrained(str(tmp_path))
    stored = load_file(tmp_path / ADAPTER_WEIGHTS)
    found = get_peft_model_state_dict(put_on(make_base(dtype), tmp_path, "fp32"))
    assert found.keys() == stored.keys() and all(torch.equal(found[name], value) for name, value in stored.items())


@pytest.mark.parametrize("name", ["q_proj", "embed_tokens", "input_layernorm"])
def test_a_part_of_the_model_lends_no_adapter_its_name(name: str) -> None:
    method = MethodSection(type="lora", adapters={name: AdapterSection(), "other": AdapterSection()})
    with pytest.raises(SpecError, match=f"can't be called {name}: the model has a module of that name"):
        attach_adapters(make_base(torch.float32), method, TrainSection())


def test_names_that_torch_takes_are_known() -> None:
    """torch's dictionaries of modules and of parameters refuse a key that is one of their attributes."""
    attributes = {name for kind in (torch.nn.ModuleDict(), torch.nn.ParameterDict()) for name in dir(kind)}
    assert {name for name in attributes if not name_problem(name)[0]} == set()
    assert name_problem("small") == name_problem("large-2") == ("", "")
