"""GPT-2 and GPT-NeoX: from the sizes in config.json to every parameter."""

from __future__ import annotations

from launcher.memory.shape import ModelShape
from launcher.memory.shape_config import Config
from launcher.memory.shape_layers import conv1d, embedding, head, in_layers, linear, norm


def shape_of_gpt2(config: Config, family: str) -> ModelShape:
    """GPT-2: learned positions, biases everywhere, weights the other way round, the head tied."""
    hidden, heads = config.size("n_embd", "hidden_size", default=768), config.size("n_head", "num_attention_heads", default=12)
    every, vocab = config.layers("n_layer", "num_hidden_layers", default=12), config.size("vocab_size", default=50257)
    width, positions = config.size("n_inner", default=4 * hidden), config.size("n_positions", default=1024)
    tied, layer = config.flag("tie_word_embeddings", True), "transformer.h.{}"
    inside = [
        *norm(f"{layer}.ln_1", hidden, "layer"),
        *conv1d(f"{layer}.attn.c_attn", 3 * hidden, hidden, "attention"),
        *conv1d(f"{layer}.attn.c_proj", hidden, hidden, "attention"),
        *norm(f"{layer}.ln_2", hidden, "layer"),
        *conv1d(f"{layer}.mlp.c_fc", width, hidden, "mlp"),
        *conv1d(f"{layer}.mlp.c_proj", hidden, width, "mlp"),
    ]
    return ModelShape(
        family=family,
        layers=len(every),
        hidden=hidden,
        intermediate=width,
        heads=heads,
        kv_heads=heads,
        head_dim=config.share(hidden, heads, "n_head"),
        vocab=vocab,
        tied=tied,
        gated=False,
        activation=config.text("activation_function", default="gelu_new"),
        norm="layer",
        context=positions,
        tensors=(
            embedding("transformer.wte", vocab, hidden),
            embedding("transformer.wpe", positions, hidden),
            *in_layers(inside, every),
            *norm("transformer.ln_f", hidden, "layer"),
            *head("lm_head", vocab, hidden, tied=tied),
        ),
    )


def shape_of_neox(config: Config, family: str) -> ModelShape:
    """GPT-NeoX and Pythia: one matrix for query, key and value, biases everywhere but in the head."""
    hidden, heads = config.size("hidden_size", default=6144), config.size("num_attention_heads", default=64)
    every, vocab = config.layers("num_hidden_layers", default=44), config.size("vocab_size", default=50432)
    width, bias = config.size("intermediate_size", default=24576), config.flag("attention_bias", True)
    tied, layer = config.flag("tie_word_embeddings", False), "gpt_neox.layers.{}"
    inside = [
        *norm(f"{layer}.input_layernorm", hidden, "layer"),
        *norm(f"{layer}.post_attention_layernorm", hidden, "layer"),
        *linear(f"{layer}.attention.query_key_value", 3 * hidden, hidden, "attention", bias=bias),
        *linear(f"{layer}.attention.dense", hidden, hidden, "attention", bias=bias),
        *linear(f"{layer}.mlp.dense_h_to_4h", width, hidden, "mlp", bias=True),
        *linear(f"{layer}.mlp.dense_4h_to_h", hidden, width, "mlp", bias=True),
    ]
    return ModelShape(
        family=family,
        layers=len(every),
        hidden=hidden,
        intermediate=width,
        heads=heads,
        kv_heads=heads,
        head_dim=config.share(hidden, heads, "num_attention_heads"),
        vocab=vocab,
        tied=tied,
        gated=False,
        activation=config.text("hidden_act", default="gelu"),
        norm="layer",
        parallel=config.flag("use_parallel_residual", True),
        context=config.size("max_position_embeddings", default=2048),
        tensors=(
            embedding("gpt_neox.embed_in", vocab, hidden),
            *in_layers(inside, every),
            *norm("gpt_neox.final_layer_norm", hidden, "layer"),
            *head("lm_head", vocab, hidden, tied=tied),
        ),
    )
