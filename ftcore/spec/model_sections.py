"""Sections of a spec: the base model, what of it is trained, and in which portions. `None`s mean what they mean in ftcore.spec.sections."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection:
    """The base model."""

    model_name_or_path: str
    """Hub id, folder, GGUF file, `package:NAME/FILE` (a file in an installed Python package) or `builtin:tiny-llama`."""
    revision: str = "main"
    """Branch, tag or commit of a hub id."""
    dtype: str | None = None
    """Type the base weights are held in: float32, bfloat16 or float16; resolved from train.precision when not given."""
    attn_implementation: str = "sdpa"
    """sdpa (one call a sample, so that samples of a row never see each other) or flash_attention_2."""
    trust_remote_code: bool = False
    """Whether code that a hub repository ships may run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSection:
    """One of several adapters that are trained on the same base; None: as the method says."""

    r: int | None = None
    """Rank of this adapter's matrices."""
    lora_alpha: float | None = None
    """Scale of this adapter."""
    learning_rate: float | None = None
    """Highest learning rate of this adapter; None: optimizer.learning_rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSection:
    """Which parameters are trained."""

    type: str = "full"
    """full, lora, or qlora (LoRA on a base whose linear layers are held in 4 or 8 bits)."""
    r: int = 16
    """Rank of the LoRA matrices."""
    lora_alpha: float = 32
    """LoRA scale; the update is multiplied by lora_alpha / r."""
    lora_dropout: float = 0.0
    """Dropout on the LoRA input, 0 <= p < 1."""
    target_modules: tuple[str, ...] = ("all-linear",)
    """Names (last parts) of the linear layers that get an adapter, or `all-linear`."""
    modules_to_save: tuple[str, ...] = ()
    """Modules trained whole beside the adapter."""
    use_rslora: bool = False
    """Scale by lora_alpha / sqrt(r) instead of lora_alpha / r."""
    use_dora: bool = False
    """Train magnitude and direction apart (DoRA)."""
    adapter_name_or_path: str = ""
    """Folder of an adapter to start from; empty: a fresh one."""
    adapters: dict[str, AdapterSection] = field(default_factory=dict)
    """Several adapters by name, each trained as if alone; empty: one."""
    bits: int = 4
    """Bits of the base's linear layers (qlora): 4 or 8."""
    quant_type: str = "nf4"
    """4-bit type (qlora): nf4 or fp4."""
    double_quant: bool = True
    """Quantise the 4-bit blocks' scales as well (qlora)."""
    compute_dtype: str | None = None
    """Type the 4-bit layers compute in (qlora): bfloat16, float16 or float32; None: that of train.precision."""
    storage_dtype: str = "uint8"
    """Type the packed 4-bit weights are stored as (qlora): uint8, bfloat16, float16 or float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSection:
    """Size of an update and of a micro-step; exactly one of the first two is set."""

    global_batch_size: int | None = None
    """Samples in an update, over all ranks; None when tokens_per_update is used."""
    tokens_per_update: int | None = None
    """Most tokens in an update, over all ranks; None when global_batch_size is used."""
    micro_batch_tokens: int = 4096
    """Most tokens a rank computes in one micro-step."""
    layout: str = "packed"
    """packed: a micro-step is one row without padding; padded: one row a sample, for models that can't keep packed samples apart."""
