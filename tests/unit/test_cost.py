"""What attention adds to the cost of a sample, by the model's sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftcore.batch.cost import UNKNOWN, AttentionShare, attention_share_of, sample_costs, share_of_config
from launcher.memory.shape import read_shape
from launcher.memory.work import matmul_parameters

SMOLLM2_135M = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
LLAMA_3_8B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
MISTRAL_7B = {**LLAMA_3_8B, "model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096}
MIXTRAL_8X7B = {**MISTRAL_7B, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_inner": None}
QWEN3_4B = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9728,
    "vocab_size": 151936,
    "sliding_window": 4096,
    "use_sliding_window": False,
}
GEMMA2_2B = {
    "model_type": "gemma2",
    "num_hidden_layers": 26,
    "hidden_size": 2304,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "intermediate_size": 9216,
    "vocab_size": 256000,
    "sliding_window": 4096,
}


@pytest.mark.parametrize(
    ("config", "supervised", "share"),
    [
        # 30 · 576 / (30 · (2 · 576² + 2 · 576 · 192 + 3 · 576 · 1536) + f · 49152 · 576)
        (SMOLLM2_135M, 0.0, 17_280 / 106_168_320),
        (SMOLLM2_135M, 1.0, 17_280 / 134_479_872),
        # 32 · 4096 / (32 · (2 · 4096² + 2 · 4096 · 1024 + 3 · 4096 · 14336) + f · 128256 · 4096)
        (LLAMA_3_8B, 0.0, 131_072 / 6_979_321_856),
        (LLAMA_3_8B, 0.5, 131_072 / (6_979_321_856 + 262_668_288)),
        # Two of eight experts and the router: 32 · (2 · 4096² + 2 · 4096 · 1024 + 2 · 3 · 4096 · 14336 + 8 · 4096)
        (MIXTRAL_8X7B, 0.0, 131_072 / (32 * (33_554_432 + 8_388_608 + 352_321_536 + 32_768))),
        # Of 12 · h² a layer: 1 / (12 · 768)
        (GPT2, 0.0, 1 / (12 * 768)),
    ],
)
def test_the_share_of_known_models(config: dict[str, Any], supervised: float, share: float) -> None:
    assert share_of_config(config, supervised) == AttentionShare(full=pytest.approx(share, rel=1e-12))


@pytest.mark.parametrize("config", [SMOLLM2_135M, LLAMA_3_8B, MISTRAL_7B, MIXTRAL_8X7B, GPT2, QWEN3_4B, GEMMA2_2B])
def test_the_memory_ledger_counts_the_same_matrices(config: dict[str, Any]) -> None:
    shape = read_shape({"max_position_embeddings": 4096, "n_positions": 1024, **config})
    share = share_of_config(config, 0.0)
    attention = shape.heads * shape.head_dim
    matmul = matmul_parameters(shape)
    assert share.full == pytest.approx((shape.layers - len(shape.windowed)) * attention / matmul)
    assert share.windowed == pytest.approx(len(shape.windowed) * attention / matmul) and share.window == shape.window


def test_a_window_caps_what_attention_costs() -> None:
    share = share_of_config(MISTRAL_7B, 1.0)
    c = 131_072 / (6_979_321_856 + 131_072_000)
    assert share == AttentionShare(full=0.0, windowed=pytest.approx(c), window=4096)
    lengths = np.asarray([1000, 4096, 16_384], dtype=np.int32)
    # Pairs of tokens that see each other, twice: l² inside the window; beyond it each token sees 4096.
    seen = np.asarray([1000.0**2, 4096.0**2, 2 * 4096.0 * 16_384 - 4096.0**2])
    assert share.costs(lengths) == pytest.approx(lengths + c * seen)
    assert sample_costs(lengths, 0.001) == pytest.approx(lengths + 0.001 * lengths.astype(float) ** 2)


@pytest.mark.parametrize(
    ("changes", "windowed"),
    [
        ({"use_sliding_window": True, "max_window_layers": 28}, 8),
        ({"layer_types": ["sliding_attention", "full_attention"] * 18, "use_sliding_window": True}, 18),
        ({"model_type": "gemma3_text"}, 30),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 3}, 24),
        ({"sliding_window": None, "use_sliding_window": True}, 0),
    ],
)
def test_layers_with_a_window(changes: dict[str, Any], windowed: int) -> None:
    share = share_of_config({**QWEN3_4B, **changes}, 1.0)
    assert share.windowed / (share.full + share.windowed) == pytest.approx(windowed / 36)


def test_layers_without_experts_are_dense() -> None:
    config = {**LLAMA_3_8B, "num_hidden_layers": 4, "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "mlp_only_layers": [1]}
    config |= {"shared_expert_intermediate_size": 1024, "first_k_dense_replace": 1}
    attention, dense, mixed = 2 * 4096**2 + 2 * 4096 * 1024, 3 * 4096 * 14336, 3 * 4096 * (2 * 512 + 1024) + 16 * 4096
    assert share_of_config(config, 0.0).full == pytest.approx(4 * 4096 / (4 * attention + 2 * dense + 2 * mixed))


@pytest.mark.parametrize(
    ("config", "share"), [({"hidden_size": 64}, 1 / (12 * 64)), ({"text_config": SMOLLM2_135M}, 17_280 / 134_479_872), ({}, UNKNOWN), (None, UNKNOWN)]
)
def test_the_share_of_a_folder(config: dict[str, Any] | None, share: float, tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert attention_share_of(str(tmp_path)).full == pytest.approx(share)
