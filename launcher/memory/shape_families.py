"""How each family of models is built: from the sizes in config.json to every parameter, as transformers' classes make them.

A default is that of the family's configuration class in transformers, which stands in for what a config.json leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass

from launcher.memory.shape import ModelShape
from launcher.memory.shape_config import Config
from launcher.memory.shape_layers import Attention, embedding, experts, head, in_layers, mlp, norm
from launcher.memory.shape_windows import windowed_layers

PRE_NORMS = ("input_layernorm", "post_attention_layernorm")
SANDWICH = (*PRE_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")
AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
GELU = "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What sets a family apart from Mistral."""

    norms: tuple[str, ...] = PRE_NORMS
    norm: str = "rms"
    final_norm: str = "norm"
    qkv_bias: bool | str = False
    """Whether query, key and value have a bias, or the key of config.json that says so."""
    bias_default: bool = False
    output: str = "o_proj"
    output_bias: bool | str = False
    qk_norm: str = ""
    """Norms of queries and keys: empty, `head` (over one head's width) or `whole` (over all heads)."""
    mlp: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    mlp_bias: bool | str = False
    head_bias: bool = False
    tied: bool = False
    head_dim: int = 0
    """Default of head_dim; 0: hidden_size / heads."""
    kv_heads: int = 0
    """Default of num_key_value_heads; 0: as many as heads."""
    activation: str = "silu"
    fused: bool = False
    """One matrix for query, key and value."""
    experts_key: str = ""
    """Key of config.json with the number of experts; empty: dense."""
    experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    """Default of moe_intermediate_size; 0: experts are as wide as intermediate_size."""
    shared_expert: int = 0
    """Default of shared_expert_intermediate_size; 0: there is none."""
    parallel: bool = False

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate."""
        return any("gate" in name for name in self.mlp)


RECIPES: dict[str, Recipe] = {
    "llama": Recipe(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"),
    "smollm3": Recipe(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias", kv_heads=4, tied=True),
    "granite": Recipe(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"),
    "mistral": Recipe(kv_heads=8),
    "mixtral": Recipe(kv_heads=8, experts_key="num_local_experts", experts=8, experts_per_token=2),
    "qwen2": Recipe(qkv_bias=True, kv_heads=32),
    "qwen2_moe": Recipe(
        qkv_bias="qkv_bias",
        bias_default=True,
        kv_heads=16,
        experts_key="num_experts",
        experts=60,
        experts_per_token=4,
        expert_width=1408,
        shared_expert=5632,
    ),
    "qwen3": Recipe(qkv_bias="attention_bias", output_bias="attention_bias", kv_heads=32, head_dim=128, qk_norm="head"),
    "qwen3_moe": Recipe(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        kv_heads=4,
        qk_norm="head",
        experts_key="num_experts",
        experts=128,
        experts_per_token=8,
        expert_width=768,
    ),
    "gemma": Recipe(qkv_bias="attention_bias", output_bias="attention_bias", kv_heads=16, head_dim=256, tied=True, activation=GELU),
    "gemma2": Recipe(qkv_bias="attention_bias", output_bias="attention_bias", kv_heads=4, head_dim=256, tied=True, norms=SANDWICH, activation=GELU),
    "gemma3_text": Recipe(
        qkv_bias="attention_bias", output_bias="attention_bias", kv_heads=4, head_dim=256, tied=True, norms=SANDWICH, qk_norm="head", activation=GELU
    ),
    "olmo": Recipe(qkv_bias="attention_bias", output_bias="attention_bias", norm="bare"),
    "olmo2": Recipe(qkv_bias="attention_bias", output_bias="attention_bias", norms=AFTER, qk_norm="whole"),
    "olmo3": Recipe(qkv_bias="attention_bias", output_bias="attention_bias", norms=AFTER, qk_norm="whole"),
    "phi3": Recipe(fused=True, mlp=("gate_up_proj", "down_proj")),
    "phi": Recipe(
        norms=("input_layernorm",),
        norm="layer",
        final_norm="final_layernorm",
        qkv_bias=True,
        output="dense",
        output_bias=True,
        mlp=("fc1", "fc2"),
        mlp_bias=True,
        head_bias=True,
        parallel=True,
        activation="gelu_new",
    ),
    "starcoder2": Recipe(
        norm="layer",
        qkv_bias="use_bias",
        bias_default=True,
        output_bias="use_bias",
        mlp=("c_fc", "c_proj"),
        mlp_bias="use_bias",
        kv_heads=2,
        tied=True,
        activation=GELU,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Experts in place of the MLP in some layers."""

    layers: tuple[int, ...]
    count: int
    per_token: int
    width: int
    shared: int


def shape_like_llama(config: Config, family: str) -> ModelShape:
    """A model of embedding, decoder layers of attention and MLP or experts, final norm and head, by the recipe of its family."""
    recipe = RECIPES[family]
    attention = _attention(config, recipe)
    hidden, every = attention.hidden, config.layers("num_hidden_layers")
    vocab, intermediate = config.size("vocab_size"), config.size("intermediate_size")
    mixture = _mixture(config, recipe, len(every), intermediate)
    dense = tuple(layer for layer in every if layer not in mixture.layers)
    tied = config.flag("tie_word_embeddings", recipe.tied)
    window, windowed = windowed_layers(config, family, every)
    layer_norms = [tensor for name in recipe.norms for tensor in norm(f"model.layers.{{}}.{name}", hidden, recipe.norm)]
    return ModelShape(
        family=family,
        layers=len(every),
        hidden=hidden,
        intermediate=intermediate if dense else mixture.width,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        vocab=vocab,
        tied=tied,
        experts=mixture.count,
        experts_per_token=mixture.per_token,
        expert_intermediate=mixture.width,
        gated=recipe.gated,
        activation=config.text("hidden_activation", "hidden_act", default=recipe.activation),
        norm=recipe.norm,
        parallel=recipe.parallel,
        context=config.size("max_position_embeddings", default=0, least=0),
        window=window,
        windowed=windowed,
        tensors=(
            embedding("model.embed_tokens", vocab, hidden),
            *in_layers(attention.tensors(), every),
            *in_layers(mlp("model.layers.{}.mlp", recipe.mlp, hidden, intermediate, bias=_says(config, recipe.mlp_bias, recipe)), dense),
            *in_layers(experts("model.layers.{}.mlp", hidden, mixture.count, mixture.width, mixture.shared), mixture.layers),
            *in_layers(layer_norms, every),
            *norm(f"model.{recipe.final_norm}", hidden, recipe.norm),
            *head("lm_head", vocab, hidden, tied=tied, bias=recipe.head_bias),
        ),
    )


def _attention(config: Config, recipe: Recipe) -> Attention:
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    given = config.size("head_dim", default=recipe.head_dim, least=0)
    # Written as null it means as many as heads, left out what the family's class says.
    all_heads = recipe.kv_heads == 0 or "num_key_value_heads" in config.data
    return Attention(
        prefix="model.layers.{}.self_attn",
        hidden=hidden,
        heads=heads,
        kv_heads=config.size("num_key_value_heads", default=heads if all_heads else recipe.kv_heads),
        head_dim=given or config.share(hidden, heads, "num_attention_heads"),
        bias=_says(config, recipe.qkv_bias, recipe),
        output=recipe.output,
        output_bias=_says(config, recipe.output_bias, recipe),
        qk_norm="layer" if config.flag("qk_layernorm", False) else recipe.qk_norm,
        fused=recipe.fused,
    )


def _says(config: Config, bias: bool | str, recipe: Recipe) -> bool:
    return bias if isinstance(bias, bool) else config.flag(bias, recipe.bias_default)


def _mixture(config: Config, recipe: Recipe, layers: int, intermediate: int) -> Mixture:
    count = config.size(recipe.experts_key, "num_local_experts", "num_experts", default=recipe.experts, least=0) if recipe.experts_key else 0
    if not count:
        return Mixture(layers=(), count=0, per_token=0, width=0, shared=0)
    step, without = config.size("decoder_sparse_step", default=1), config.numbers("mlp_only_layers")
    return Mixture(
        layers=tuple(layer for layer in range(layers) if layer not in without and (layer + 1) % step == 0),
        count=count,
        per_token=min(config.size("num_experts_per_tok", default=recipe.experts_per_token), count),
        width=config.size("moe_intermediate_size", default=recipe.expert_width) if recipe.expert_width else intermediate,
        shared=config.size("shared_expert_intermediate_size", default=recipe.shared_expert) if recipe.shared_expert else 0,
    )
