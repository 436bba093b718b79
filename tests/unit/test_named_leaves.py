"""leaf_module: DeepSpeed passes over classes and names that the model lacks, so that nothing at all of it may not happen unseen."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import LlamaForCausalLM

from ftcore.model.named_leaves import check_named_leaves
from ftcore.spec.errors import SpecError
from tests.unit.test_adapter_types import SMALL


def overrides(**leaf: list[str]) -> dict[str, Any]:
    return {"zero_optimization": {"leaf_module": leaf}}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"zero_optimization": {"round_robin_gradients": False}},
        overrides(classes=[]),
        overrides(classes=["MixtralSparseMoeBlock", "LlamaMLP"]),
        overrides(classes=["transformers.models.llama.modeling_llama.LlamaMLP"]),
        overrides(names=["model.layers.0.mlp"]),
        overrides(classes=["MixtralSparseMoeBlock"], name_suffixes=["mlp"]),
    ],
)
def test_something_fits(given: dict[str, Any]) -> None:
    check_named_leaves(LlamaForCausalLM(SMALL), given)


@pytest.mark.parametrize("given", [overrides(classes=["LlamaMlp", "NoSuch"]), overrides(names=["layers.0.mlp"]), overrides(name_suffixes=["moe"])])
def test_nothing_fits(given: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"the model has no module of (LlamaMlp, NoSuch|layers.0.mlp|moe)") as caught:
        check_named_leaves(LlamaForCausalLM(SMALL), given)
    [problem] = caught.value.problems
    assert "LlamaDecoderLayer" in problem.fix and problem.where == "zero.overrides.zero_optimization.leaf_module"
