"""Runs to plan for: specs of known models on made-up hosts, without files."""

from __future__ import annotations

import dataclasses
from typing import Any

from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.sections import BatchSection, DataSection, MethodSection, ModelSection, Spec, TrainingSet, TrainSection, ZeroSection
from launcher.memory.shape import ModelShape, read_shape
from launcher.resolve import derived_coalescing

LLAMA_8B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


def llama(*, layers: int = 32, hidden: int = 4096, intermediate: int = 14336) -> ModelShape:
    """Llama-3-8B, or one with other sizes."""
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": intermediate, "num_attention_heads": hidden // 128}
    return read_shape({**LLAMA_8B, **sizes})


def run(
    *, ranks: int = 8, nodes: int = 1, method: str = "full", stage: int = 2, length: int = 2048, budget: int = 4096, samples: int = 128, **hardware: Any
) -> ResolvedSpec:
    """A run in bf16 on hosts of `ranks` slots, of samples that nothing is known of."""
    spec = Spec(
        model=ModelSection(model_name_or_path="owner/model", dtype="bfloat16"),
        data=DataSection(train=TrainingSet(path="/nowhere/train.jsonl"), max_length=length),
        method=MethodSection(type=method),
        batch=BatchSection(global_batch_size=samples, micro_batch_tokens=budget),
        train=TrainSection(max_steps=100, precision="bf16"),
        zero=ZeroSection(stage=stage),
    )
    spec = dataclasses.replace(spec, hardware=dataclasses.replace(spec.hardware, **hardware))
    spec = dataclasses.replace(spec, zero=dataclasses.replace(spec.zero, coalesce_grad_reduction=derived_coalescing(spec.zero, spec.method)))
    hosts = tuple(Host(name=f"host{number}", slots=ranks) for number in range(nodes))
    return ResolvedSpec(spec=spec, hosts=hosts, sources={"zero.coalesce_grad_reduction": "derived"}, cache_dir="/nowhere")
