"""Sections of a spec: how parameters move, and what DeepSpeed shards. `None`s mean what they mean in ftcore.spec.sections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """What differs for the trained parameters that a pattern matches; None: as the optimizer section says."""

    pattern: str
    """Matched against the parameter's whole name; `*` stands for any text. The first group that matches decides."""
    learning_rate: float | None = None
    """Highest learning rate of these parameters."""
    weight_decay: float | None = None
    """For all of them, biases and norms too."""
    max_grad_norm: float | None = None
    """Clip the norm over these parameters alone to this; 0 never clips."""
    freeze: bool = False
    """Don't train them."""
    keep_in_fp32: bool = False
    """Compute them in fp32 under bf16_autocast, which holds all weights in fp32 and computes matrix products in bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSection:
    """How parameters move."""

    type: str = "adamw"
    """adamw, adamw_8bit, adafactor, muon or sgd."""
    learning_rate: float = 2e-5
    weight_decay: float = 0.0
    """Decoupled, but for sgd; biases and one-dimensional parameters are not decayed."""
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    momentum: float = 0.0
    """sgd only."""
    muon_momentum: float = 0.95
    """Of the averaged gradients of muon's matrices; the other parameters are stepped by AdamW."""
    max_grad_norm: float = 1.0
    """Clip the global gradient norm to this; 0 never clips."""
    parameter_groups: tuple[ParameterGroup, ...] = ()
    """Parameters treated otherwise, by pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSection:
    """The course of the learning rate."""

    lr_scheduler_type: str = "linear"
    """linear, cosine, warmup_stable_decay, constant or constant_with_warmup."""
    warmup_ratio: float = 0.0
    """Share of the updates over which the learning rate rises from 0."""
    warmup_steps: int | None = None
    """Updates of warm-up; given, it wins over warmup_ratio. None after resolving: the ratio decides."""
    decay_ratio: float = 0.1
    """Share of the updates over which the learning rate falls at the end (warmup_stable_decay)."""
    decay_steps: int | None = None
    """Updates of that decay; given, it wins over decay_ratio. None after resolving: the ratio decides."""
    decay_type: str = "cosine"
    """Curve of that decay: linear, cosine or 1-sqrt."""
    min_lr_ratio: float = 0.0
    """Share of the learning rate that linear, cosine and warmup_stable_decay end at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSection:
    """Length, precision and memory of the training itself."""

    num_train_epochs: float | None = None
    """Passes over the training set; None when max_steps is used."""
    max_steps: int | None = None
    """Updates of the run; None when num_train_epochs is used."""
    seed: int = 42
    gradient_checkpointing: str = "none"
    """Decoder layers whose activations are recomputed in the backward pass: none, full, every:K (each K-th) or sqrt (kept once in about sqrt(layers))."""
    precision: str = "bf16"
    """fp32; bf16 or fp16 (16-bit compute, fp32 master weights; fp16 with a dynamic loss scale); or bf16_autocast (fp32 weights, bf16 matrix products)."""
    keep_in_fp32: tuple[str, ...] = ()
    """Names (parts) of buffers kept in fp32 under bf16 and fp16."""
    on_nonfinite: str = "stop"
    """What a loss or gradient that is not finite does: stop the run, or skip the update. Either way no parameter is changed."""
    max_nonfinite_updates: int = 3
    """Updates in a row that may be skipped before the run stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSection:
    """What DeepSpeed's ZeRO shards and where it is held."""

    stage: int = 2
    """DeepSpeed ZeRO stage 0-3."""
    offload_optimizer: str = "none"
    """none or cpu; nvme is refused, since its state can't be saved yet."""
    offload_param: str = "none"
    """none, cpu or nvme (stage 3)."""
    nvme_path: str = ""
    """Folder on local NVMe; needed by offload_param: nvme."""
    config: str = ""
    """An existing DeepSpeed JSON to start from; empty: the preset of the stage."""
    reduce_bucket_size: int | None = None
    """Elements reduced at once; None, here and below: the preset's, or that of zero.config."""
    allgather_bucket_size: int | None = None
    """Elements gathered at once (stages 1 and 2)."""
    stage3_prefetch_bucket_size: int | None = None
    """Elements fetched ahead (stage 3)."""
    stage3_param_persistence_threshold: int | None = None
    """Parameters with at most so many elements stay whole on each rank (stage 3)."""
    stage3_max_live_parameters: int | None = None
    """Elements that may be gathered at a time (stage 3)."""
    stage3_max_reuse_distance: int | None = None
    """A parameter used again within so many elements is not released (stage 3)."""
    sub_group_size: int | None = None
    """Elements that the optimizer steps at once (stage 3)."""
    overlap_comm: bool | None = None
    """Communicate while gradients are computed."""
    zero_hpz_partition_size: int | None = None
    """Ranks that share a second copy of the weights, those of a node (ZeRO++, stage 3)."""
    zero_quantized_weights: bool | None = None
    """Gather weights in 8 bits (ZeRO++, stage 3)."""
    zero_quantized_nontrainable_weights: bool | None = None
    """Hold frozen weights in 8 bits (stage 3)."""
    zero_quantized_gradients: bool | None = None
    """Reduce gradients in 4 bits (ZeRO++, stage 3)."""
    coalesce_grad_reduction: bool | None = None
    """Reduce gradients once an update instead of once a micro-step (stages 2 and 3): faster, but a rank holds its local gradients whole.
    Resolved when not given: true with lora, and in stage 2 without offload."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """DeepSpeed keys merged over the preset, as in a DeepSpeed JSON."""
