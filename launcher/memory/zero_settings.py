"""What ds_config.json says about memory, with DeepSpeed's defaults for what it leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ftcore.spec.resolved import ResolvedSpec
from launcher.ds_config import build_ds_config

FLOAT_BYTES = {"fp32": 4, "float32": 4, "float": 4, "bf16": 2, "bfloat16": 2, "bfp16": 2, "fp16": 2, "float16": 2, "half": 2}
DEFAULTS = {
    "reduce_bucket_size": 500_000_000,
    "allgather_bucket_size": 500_000_000,
    "sub_group_size": 1_000_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "stage3_model_persistence_threshold": 2**63 - 1,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "zero_hpz_partition_size": 1,
}
"""DeepSpeed's own (runtime/zero/config.py), in elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """One of offload_optimizer and offload_param."""

    device: str
    """none, cpu or nvme."""
    pin_memory: bool
    buffer_count: int
    buffer_size: int
    """Elements of a swap buffer (offload_param: nvme)."""
    max_in_cpu: int
    """Elements of a group of parameters kept in host memory (offload_param: nvme)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSettings:
    """Sizes are elements."""

    stage: int
    ranks: int
    compute_bytes: int
    """Of a number in the type that DeepSpeed computes and communicates with."""
    accumulation_bytes: int
    """Of a number in the type that gradients are added up in."""
    reduce_bucket: int
    allgather_bucket: int
    overlap: bool
    contiguous: bool
    prefetch_bucket: int
    persistence_threshold: int
    model_persistence_threshold: int
    max_live: int
    max_reuse_distance: int
    sub_group: int
    hpz_ranks: int
    """Ranks that share a second copy of the weights; 1: there is none."""
    quantised_frozen: bool
    """Whether stage 3 holds frozen weights in 8 bits."""
    coalesces: bool
    """Whether a rank holds the local gradients of an update whole, to reduce them once."""
    scales_loss: bool
    """fp16."""
    offload_optimizer: Offload
    offload_param: Offload

    @property
    def wrapper(self) -> str:
        """Which of DeepSpeed's optimizers holds the states (runtime/engine.py, _do_optimizer_sanity_check): none, bf16, flat or partitioned."""
        if self.stage in (0, 3):
            return "none" if self.stage == 0 else "partitioned"
        is_bf16 = self.stage == 1 and self.compute_bytes == 2 and self.accumulation_bytes == 4 and self.offload_optimizer.device == "none"
        return "bf16" if is_bf16 and not self.scales_loss else "flat"


def zero_settings(resolved: ResolvedSpec) -> ZeroSettings:
    """The settings of a run, read from the ds_config.json that it would be launched with."""
    config = build_ds_config(resolved)
    zero = config["zero_optimization"]
    is_half = any(config.get(name, {}).get("enabled") is True for name in ("bf16", "fp16"))
    compute = 2 if is_half else 4
    accumulation = config.get("data_types", {}).get("grad_accum_dtype")
    sizes = {name: int(zero.get(name, default) or 0) for name, default in DEFAULTS.items()}
    overlap = zero.get("overlap_comm")
    return ZeroSettings(
        stage=int(zero["stage"]),
        ranks=resolved.world_size,
        compute_bytes=compute,
        accumulation_bytes=FLOAT_BYTES.get(str(accumulation), compute),
        reduce_bucket=sizes["reduce_bucket_size"],
        allgather_bucket=sizes["allgather_bucket_size"],
        overlap=bool(zero["stage"] == 3 if overlap is None else overlap),
        contiguous=bool(zero.get("contiguous_gradients", True)),
        prefetch_bucket=sizes["stage3_prefetch_bucket_size"],
        persistence_threshold=sizes["stage3_param_persistence_threshold"],
        model_persistence_threshold=sizes["stage3_model_persistence_threshold"],
        max_live=sizes["stage3_max_live_parameters"],
        max_reuse_distance=sizes["stage3_max_reuse_distance"],
        sub_group=sizes["sub_group_size"],
        hpz_ranks=max(1, sizes["zero_hpz_partition_size"]),
        quantised_frozen=bool(zero.get("zero_quantized_nontrainable_weights", False)),
        coalesces=bool(resolved.spec.zero.coalesce_grad_reduction) and int(zero["stage"]) in (2, 3),
        offload_optimizer=_offload(zero.get("offload_optimizer"), count=4, size=0),
        offload_param=_offload(zero.get("offload_param"), count=5, size=100_000_000),
        scales_loss=config.get("fp16", {}).get("enabled") is True,
    )


def _offload(block: dict[str, Any] | None, *, count: int, size: int) -> Offload:
    given = block or {"device": "none"}
    return Offload(
        device=str(given.get("device", "none")),
        pin_memory=bool(given.get("pin_memory", False)),
        buffer_count=int(given.get("buffer_count", count)),
        buffer_size=int(given.get("buffer_size", size)),
        max_in_cpu=int(given.get("max_in_cpu", 1_000_000_000)),
    )
