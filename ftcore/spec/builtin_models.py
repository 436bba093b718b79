"""Sizes of the model that ftlaunch builds itself: what its config.json says, for the core that makes it and the launcher that plans for it."""

from __future__ import annotations

from typing import Any

TINY_LLAMA = "builtin:tiny-llama"
TINY_LLAMA_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "vocab_size": 264,
    "tie_word_embeddings": False,
}
"""264: 256 bytes and the special tokens, rounded up to a multiple of 8."""
