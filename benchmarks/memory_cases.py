"""What benchmarks/memory.py measures: models of real shapes at reduced depth, and the configurations they are trained in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.sections import (
    BatchSection,
    DataSection,
    MethodSection,
    ModelSection,
    OptimizerSection,
    Spec,
    TrainingSet,
    TrainSection,
    ZeroSection,
)
from launcher.resolve import derived_coalescing
from launcher.rules.precision import DTYPES

MODELS: dict[str, dict[str, Any]] = {
    # SmolLM2-135M's widths; 4 of its 30 layers, a third of its vocabulary.
    "smollm2": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 4,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 16384,
        "tie_word_embeddings": True,
    },
    # Qwen3-0.6B's proportions: heads wider than the hidden size, norms of queries and keys.
    "qwen3": {
        "model_type": "qwen3",
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 12288,
        "tie_word_embeddings": True,
    },
    # Llama-3's proportions with a head of its own.
    "llama": {
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1792,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 8192,
        "tie_word_embeddings": False,
    },
}
COMMON = {"max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration."""

    name: str
    model: str = "smollm2"
    ranks: int = 2
    stage: int = 2
    method: str = "full"
    precision: str = "bf16"
    checkpointing: str = "none"
    offload_optimizer: str = "none"
    offload_param: str = "none"
    dropout: float = 0.0
    segments: tuple[int, ...] = (512,)
    """Tokens of the samples in a row."""
    supervised: float = 0.5
    """Share of each sample's tokens, its last ones."""
    micro_steps: int = 2
    coalesce: bool | None = None
    """None: as the launcher decides."""

    @property
    def tokens(self) -> int:
        """Tokens of a micro-step's row."""
        return sum(self.segments)

    def resolved(self, folder: Path) -> ResolvedSpec:
        """The spec that a run of it would have; the model lies in FOLDER."""
        method = MethodSection(type=self.method, r=16, lora_alpha=32, lora_dropout=self.dropout)
        zero = ZeroSection(stage=self.stage, offload_optimizer=self.offload_optimizer, offload_param=self.offload_param)
        coalesce = derived_coalescing(zero, method) if self.coalesce is None else self.coalesce
        spec = Spec(
            model=ModelSection(model_name_or_path=str(folder / self.model), dtype=DTYPES[self.precision]),
            data=DataSection(train=TrainingSet(path="made"), max_length=max(self.segments)),
            method=method,
            batch=BatchSection(global_batch_size=self.ranks * self.micro_steps * len(self.segments), micro_batch_tokens=self.tokens),
            optimizer=OptimizerSection(type="adamw", learning_rate=1e-4),
            train=TrainSection(max_steps=2, precision=self.precision, gradient_checkpointing=self.checkpointing),
            zero=ZeroSection(stage=self.stage, offload_optimizer=self.offload_optimizer, offload_param=self.offload_param, coalesce_grad_reduction=coalesce),
        )
        return ResolvedSpec(spec=spec, hosts=(Host(name="localhost", slots=self.ranks),), sources={}, cache_dir=str(folder / "cache"))


def save_model(name: str, folder: Path) -> None:
    """Writes the model's files, with random weights in fp32, to FOLDER/NAME."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    sizes = {**COMMON, **MODELS[name]}
    config = AutoConfig.for_model(sizes.pop("model_type"), **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)


CASES: tuple[Case, ...] = (
    Case(name="full-fp32-0", stage=0, precision="fp32"),
    Case(name="full-bf16-1", stage=1),
    Case(name="full-bf16-2", stage=2),
    Case(name="full-bf16-2-each", stage=2, coalesce=False, model="llama"),
    Case(name="full-fp32-2-every2", stage=2, precision="fp32", checkpointing="every:2", segments=(256, 256)),
    Case(name="full-bf16-3", stage=3),
    Case(name="full-bf16-3-full", stage=3, checkpointing="full", model="llama", segments=(1024,)),
    Case(name="full-fp32-3-sqrt", stage=3, precision="fp32", checkpointing="sqrt", model="llama"),
    Case(name="full-bf16-2-offload", stage=2, offload_optimizer="cpu"),
    Case(name="full-bf16-3-offload", stage=3, offload_optimizer="cpu", offload_param="cpu"),
    Case(name="full-bf16-1-one-rank", stage=1, ranks=1, checkpointing="full", segments=(512, 512)),
    Case(name="full-bf16-3-four", stage=3, ranks=4, segments=(256,)),
    Case(name="lora-bf16-1", stage=1, method="lora"),
    Case(name="lora-bf16-2-dropout", stage=2, method="lora", dropout=0.1, model="qwen3"),
    Case(name="lora-fp32-2-full", stage=2, method="lora", precision="fp32", checkpointing="full", segments=(512, 512)),
    Case(name="lora-bf16-3", stage=3, method="lora", model="qwen3"),
    Case(name="lora-fp32-0-many", stage=0, method="lora", precision="fp32", segments=(128,) * 4, model="llama"),
    Case(name="qlora-bf16-2", stage=2, method="qlora"),
    Case(name="qlora-bf16-2-sqrt", stage=2, method="qlora", checkpointing="sqrt", segments=(1024,), model="llama"),
    Case(name="qlora-bf16-3-full", stage=3, method="qlora", checkpointing="full", segments=(512, 512)),
)
