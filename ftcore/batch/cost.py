"""What a sample costs by its length, from the sizes in the model's config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.int32] | npt.NDArray[np.int64]

UNKNOWN = 1.0 / (12.0 * 1024)
"""Share of a model whose sizes are not known: that of a decoder of width 1024 with 12 · 1024² parameters a layer."""
UNGATED = ("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt", "nemotron", "opt", "phi", "starcoder2", "xglm")
"""Families whose MLP has two matrices, not three."""
SWITCHED = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
"""Families whose window holds only where use_sliding_window is set, from layer max_window_layers on."""
FULL_EVERY = {"gemma2": 2, "gemma3_text": 6, "olmo3": 4}
"""Family -> of so many layers the last one sees all, where layer_types does not say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShare:
    """The cost l + full · l² + windowed · w(l), where w(l) = l² up to the window m, and 2·m·l - m² beyond it: what layers with a window still compute."""

    full: float
    """Of the layers that see every token before."""
    windowed: float = 0.0
    window: int = 0
    """Tokens."""

    def costs(self, lengths: Lengths) -> npt.NDArray[np.float64]:
        """Relative time of samples of these lengths, float64 [n]; 1 is a token's matrix products."""
        wide = lengths.astype(np.float64)
        costs = wide + self.full * wide * wide
        if self.windowed:
            seen = np.minimum(wide, float(self.window))
            costs += self.windowed * seen * (2.0 * wide - seen)
        return costs


def sample_costs(lengths: Lengths, attention_share: float | AttentionShare) -> npt.NDArray[np.float64]:
    """Relative time of each sample, float64 [n]; a number is c in l + c·l² (attention FLOPs over matmul FLOPs, per token of length)."""
    share = attention_share if isinstance(attention_share, AttentionShare) else AttentionShare(full=attention_share)
    return share.costs(lengths)


def attention_share_of(model_path: str, supervised_share: float = 1.0) -> AttentionShare:
    """The share of the model in this folder; `supervised_share`: supervised tokens over tokens, since logits are computed for those alone.

    A token costs 2·(L·P + f·V·h) FLOPs in matrix products (L layers with P parameters each that a token passes through, of experts the active ones; the
    head of V·h for a share f of the tokens), and a sample of l tokens 2·l²·L·a in causal attention (a = heads · head_dim; PaLM, arXiv 2204.02311,
    appendix B: 4·l·a a token and layer forward, of which the causal mask leaves half). Their ratio is c·l with c = L·a / (L·P + f·V·h). Backward both double.

    The share of an unknown model where config.json is missing (a hub id not yet downloaded) or says no sizes.
    """
    file = Path(model_path) / "config.json"
    if not file.is_file():
        return AttentionShare(full=UNKNOWN)
    values = json.loads(file.read_text(encoding="utf-8"))
    inner = values.get("text_config")
    return share_of_config({**values, **inner} if isinstance(inner, dict) else values, supervised_share)


def share_of_config(config: dict[str, Any], supervised_share: float) -> AttentionShare:
    """`attention_share_of` a config.json's content."""
    layers, hidden = _size(config, "num_hidden_layers", "n_layer", "num_layers"), _size(config, "hidden_size", "n_embd", "d_model")
    heads = _size(config, "num_attention_heads", "n_head", "num_heads")
    if not layers or not hidden:
        return AttentionShare(full=1.0 / (12.0 * hidden) if hidden else UNKNOWN)
    heads = heads or 1
    width = heads * (_size(config, "head_dim") or hidden // heads)
    keys = (_size(config, "num_key_value_heads") or heads) * (width // heads)
    in_layers = layers * (2 * hidden * width + 2 * hidden * keys) + _mlp_parameters(config, layers, hidden)
    matmul = in_layers + supervised_share * _size(config, "vocab_size") * hidden
    windowed, window = _windowed(config, layers)
    return AttentionShare(full=(layers - windowed) * width / matmul, windowed=windowed * width / matmul, window=window)


def _mlp_parameters(config: dict[str, Any], layers: int, hidden: int) -> int:
    """Parameters of all layers' MLPs that one token passes through: of experts the active ones and the shared one, and the router."""
    matrices = 2 if config.get("model_type") in UNGATED else 3
    dense = matrices * hidden * (_size(config, "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden)
    experts = _size(config, "num_local_experts", "num_experts", "n_routed_experts")
    if not experts:
        return layers * dense
    active = min(experts, _size(config, "num_experts_per_tok") or 1)
    width = _size(config, "moe_intermediate_size") or _size(config, "intermediate_size") or 4 * hidden
    shared = _size(config, "shared_expert_intermediate_size") or width * _size(config, "n_shared_experts")
    step, without = _size(config, "decoder_sparse_step") or 1, config.get("mlp_only_layers") or ()
    first = _size(config, "first_k_dense_replace")
    mixed = sum(layer >= first and layer not in without and (layer + 1) % step == 0 for layer in range(layers))
    return mixed * (matrices * hidden * (active * width + shared) + hidden * experts) + (layers - mixed) * dense


def _windowed(config: dict[str, Any], layers: int) -> tuple[int, int]:
    """Layers that see a window only, and its tokens."""
    family, window = str(config.get("model_type")), _size(config, "sliding_window")
    if not window or (family in SWITCHED and not config.get("use_sliding_window")):
        return 0, 0
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return kinds[:layers].count("sliding_attention"), window
    if family in SWITCHED:
        return max(0, layers - _size(config, "max_window_layers")), window
    every = _size(config, "sliding_window_pattern") or FULL_EVERY.get(family, 0)
    return (layers - layers // every if every else layers), window


def _size(config: dict[str, Any], *names: str) -> int:
    """The first of `names` that is a number over 0; else 0."""
    return next((int(value) for name in names if isinstance(value := config.get(name), (int, float)) and not isinstance(value, bool) and value > 0), 0)
