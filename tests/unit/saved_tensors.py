"""Small models of every family, and what one forward pass of theirs leaves for the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ftcore import attention
from ftcore.exact_memory_tracker import StorageTracker
from ftcore.model.adapters import attach_adapters
from ftcore.spec.sections import MethodSection, TrainSection

TOKENS, SUPERVISED = 256, 64
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "mistral": {"num_key_value_heads": 2, "sliding_window": None},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 32},
    "smollm3": {"num_key_value_heads": 2},
    "gemma": {"num_key_value_heads": 1, "head_dim": 16},
    "gemma3_text": {"num_key_value_heads": 2, "head_dim": 16},
    "phi": {},
    "phi3": {"num_key_value_heads": 2},
    "gpt2": {},
    "gpt_neox": {},
    "olmo2": {"num_key_value_heads": 2},
    "starcoder2": {"num_key_value_heads": 2, "sliding_window": None},
    "mixtral": {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {"num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 96},
    "qwen3_moe": {"num_key_value_heads": 2, "head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
}


def small_model(family: str, dtype: torch.dtype) -> PreTrainedModel:
    """Two layers of the family, with the core's attention."""
    config = AutoConfig.for_model(family, **SIZES, **FAMILIES[family])
    config.use_cache = False
    # The same weights in each run: where there are experts, the weights say which of them a token goes to.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention.NAME)
    return model


def saved_bytes(base: PreTrainedModel, method: MethodSection, precision: str, segments: tuple[int, ...]) -> int:
    """Bytes that a forward pass over one row leaves, without its logits."""
    model = base if method.type == "full" else attach_adapters(base, method, TrainSection(precision=precision))
    ids, places = torch.zeros(1, TOKENS, dtype=torch.long), torch.arange(TOKENS)[None]
    tracker = StorageTracker()
    with tracker:
        tracker.sweep(lambda tensor: "before")
        before = tracker.total
        logits = model.train()(input_ids=ids, position_ids=places, logits_to_keep=torch.arange(SUPERVISED), use_cache=False, segment_lengths=segments).logits
        return tracker.total - before - logits.untyped_storage().nbytes()
