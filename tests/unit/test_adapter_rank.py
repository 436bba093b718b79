"""Rank hints against a dense singular value decomposition, of PEFT's own models, and the names of layers and adapters."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ftcore.diagnostics import rank_report
from ftcore.diagnostics.adapter_rank import RankHint, adapter_spectra, factor_of, rank_hint, summary, to_record
from ftcore.diagnostics.layer_norms import layers_of
from ftcore.diagnostics.rank_report import _copied, _scalings
from ftcore.engine_state import OwnedSlice
from ftcore.spec.run_dir import RunDir


def factors(rank: int, inputs: int, outputs: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rank, inputs, generator=generator), torch.randn(outputs, rank, generator=generator)


def dense(down: torch.Tensor, up: torch.Tensor, scaling: float) -> RankHint:
    """The same numbers from the whole matrix."""
    values = torch.linalg.svdvals(scaling * up.flatten(1).double() @ down.flatten(1).double())
    values = values[values > 1e-12 * values[0]]
    shares = values / values.sum()
    energy = values.square().cumsum(0) / values.square().sum()
    entropy = math.exp(-float((shares * shares.log()).sum()))
    return RankHint(r=down.shape[0], rank_99=int((energy < 0.99).sum()) + 1, entropy_rank=entropy, largest=float(values[0]))


@pytest.mark.parametrize(("rank", "inputs", "outputs"), [(4, 40, 30), (8, 8, 64), (16, 12, 10), (1, 5, 5)])
def test_a_hint_is_that_of_the_whole_matrix(rank: int, inputs: int, outputs: int) -> None:
    for seed in range(5):
        down, up = factors(rank, inputs, outputs, seed)
        up = up * torch.logspace(0, -3, rank)
        hint, wanted = rank_hint(down, up, -0.5), dense(down, up, -0.5)
        assert (hint.r, hint.rank_99) == (wanted.r, wanted.rank_99)
        assert (hint.entropy_rank, hint.largest) == pytest.approx((wanted.entropy_rank, wanted.largest), rel=1e-6)


def test_a_hint_of_a_convolution() -> None:
    generator = torch.Generator().manual_seed(0)
    down, up = torch.randn(4, 3, 5, 5, generator=generator), torch.randn(16, 4, 1, 1, generator=generator)
    assert rank_hint(down, up, 1.0).largest == pytest.approx(dense(down, up, 1.0).largest)


def test_the_rank_that_is_used() -> None:
    down, up = factors(8, 40, 30)
    up[:, 3:] = 0
    assert rank_hint(down, up, 1.0).rank_99 <= 3
    assert rank_hint(down, torch.zeros_like(up), 1.0) == RankHint(r=8, rank_99=0, entropy_rank=0.0, largest=0.0)


def test_factors_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="lora_A has rank 4, lora_B 3"):
        rank_hint(torch.ones(4, 5), torch.ones(6, 3), 1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_factors_that_are_not_finite(side: int, value: float) -> None:
    pair = factors(4, 5, 6)
    pair[side][1, 1] = value
    with pytest.raises(ValueError, match="not finite"):
        rank_hint(*pair, 1.0)


def test_names_of_factors() -> None:
    told = {name: factor_of(name) for name in ("m.q.lora_A.default.weight", "m.q.lora_B.weight", "m.e.lora_embedding_A.second", "m.e.lora_embedding_B")}
    assert [(factor.module, factor.adapter, factor.side) for factor in told.values() if factor is not None] == [
        ("m.q", "default", "A"),
        ("m.q", "default", "B"),
        ("m.e", "second", "A"),
        ("m.e", "default", "B"),
    ]
    assert factor_of("m.q.weight") is factor_of("m.q.lora_magnitude_vector.default.weight") is None


def test_spectra_by_adapter_and_module() -> None:
    down, up = factors(4, 6, 5)
    named = [("m.q.weight", up)]
    named += [(f"m.{module}.lora_{side}.{adapter}.weight", down if side == "A" else up) for adapter in "xy" for module in "qv" for side in "BA"]
    spectra = adapter_spectra(named, {("x", "m.q"): 3.0})
    assert {adapter: set(hints) for adapter, hints in spectra.items()} == {"x": {"m.q", "m.v"}, "y": {"m.q", "m.v"}}
    assert spectra["x"]["m.q"].largest == pytest.approx(3 * spectra["y"]["m.q"].largest)


def test_a_side_that_is_missing() -> None:
    with pytest.raises(ValueError, match=r"one side of B·A is missing: m\.q"):
        adapter_spectra([("m.q.lora_A.default.weight", torch.ones(2, 3))], {})


def hints(*used: int, rank: int = 16) -> dict[str, RankHint]:
    return {str(place): RankHint(r=rank, rank_99=value, entropy_rank=float(value), largest=1.0) for place, value in enumerate(used)}


def test_summaries() -> None:
    assert "changes nothing, B·A is zero in all of its 2 modules" in summary(hints(0, 0))
    assert summary(hints(2, 3, 3, 4)) == "rank 16: 90% of modules need <= 4 for 99% of the energy: r 4 would do"
    assert "2 of 3 are saturated: raise r to 32" in summary(hints(16, 15, 3))
    assert summary(hints(9, 10, 10, 3)).endswith("r 16 fits")
    record = to_record({"default": hints(2)})
    assert record["default"]["modules"] == {"0": {"r": 16, "rank_99": 2, "entropy_rank": 2.0, "largest": 1.0}}


def peft_model(rslora: bool = False, dora: bool = False) -> torch.nn.Module:
    """A small Llama with two adapters of all kinds of modules, B not zero."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 19, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    targets = ["q_proj", "down_proj", "embed_tokens"]
    config = LoraConfig(r=4, lora_alpha=6, target_modules=targets, modules_to_save=["norm"], use_rslora=rslora, use_dora=dora)
    model = get_peft_model(LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2)), config)
    model.add_adapter("second", LoraConfig(r=2, lora_alpha=2, target_modules=["v_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "lora_embedding" in name:
                parameter.normal_()
    return model


@pytest.mark.parametrize("rslora", [False, True])
def test_the_adapters_of_a_model_of_peft(rslora: bool) -> None:
    model = peft_model(rslora)
    spectra = adapter_spectra(((name, parameter.detach()) for name, parameter in model.named_parameters()), _scalings(model))
    assert {adapter: len(hints) for adapter, hints in spectra.items()} == {"default": 5, "second": 2}
    for module, hint in spectra["default"].items():
        layer = model.get_submodule(module)
        change = layer.get_delta_weight("default").detach()
        assert hint.largest == pytest.approx(float(torch.linalg.matrix_norm(change, 2)), rel=1e-5), module
    assert {hint.r for hint in spectra["second"].values()} == {2}


def test_singular_values_that_are_not_found_fail_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(named: object, scalings: object) -> None:
        raise torch.linalg.LinAlgError("svd: the algorithm failed to converge")

    monkeypatch.setattr(rank_report, "adapter_spectra", fail)
    monkeypatch.setattr(rank_report, "trained_shapes", lambda engine: {"layer.lora_A.default.weight": (2, 3)})
    monkeypatch.setattr(rank_report, "_whole_masters", lambda engine, names: iter([("layer.lora_A.default.weight", torch.ones(2, 3))]))
    engine = SimpleNamespace(ranks=SimpleNamespace(is_first=True), module=torch.nn.Module())
    assert rank_report.write_rank_hint(RunDir(tmp_path), engine) == ["no rank hint: svd: the algorithm failed to converge"]


def test_layers_of_a_model_with_adapters() -> None:
    named = layers_of(name for name, _ in peft_model(dora=False).named_parameters())
    by_name = {name.removeprefix("base_model.model."): layer for name, layer in named.items()}
    assert by_name["model.layers.0.self_attn.q_proj.lora_A.default.weight"] == "model.layers.0/default"
    assert by_name["model.layers.1.self_attn.v_proj.lora_B.second.weight"] == "model.layers.1/second"
    assert by_name["model.embed_tokens.lora_embedding_A.default"] == "model.embed_tokens/default"
    assert by_name["model.norm.modules_to_save.default.weight"] == "model.norm/default"
    assert by_name["model.layers.0.mlp.up_proj.weight"] == "model.layers.0"
    assert by_name["lm_head.weight"] == "lm_head"


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.11.mlp.up_proj.weight", "model.layers.11"),
        ("transformer.h.3.attn.c_attn.bias", "transformer.h.3"),
        ("gpt_neox.layers.0.input_layernorm.weight", "gpt_neox.layers.0"),
        ("transformer.blocks.2.ffn.weight", "transformer.blocks.2"),
        ("module._orig_mod.model.layers.0.a.weight", "_orig_mod.model.layers.0"),
        ("_orig_mod.model.norm.weight", "model.norm"),
        ("model.layers.0.q_proj.lora_magnitude_vector.default.weight", "model.layers.0/default"),
        ("weight", "weight"),
    ],
)
def test_layers_of_other_models(name: str, layer: str) -> None:
    assert layers_of([name]) == {name: layer}


def test_a_slice_is_sent_without_the_flat_tensor_below_it() -> None:
    """Every slice of a flat of n elements would else be n elements on the wire: n times too much for all of them."""
    flat = torch.zeros(100_000)
    assert len(pickle.dumps(_copied(OwnedSlice("a", 0, 10, flat, 50)))) < 2_000
