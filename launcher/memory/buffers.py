"""What ZeRO sets aside to communicate with: buckets of gradients, parameters gathered for a while, and offload's buffers on the device."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.memory.items import Item
from launcher.memory.layout import Held, Layout
from launcher.memory.shape import ModelShape
from launcher.memory.states import BUILT, FLAT, SHARDED, is_persistent
from launcher.memory.zero_settings import ZeroSettings

COORDINATOR = "deepspeed/runtime/zero/partitioned_param_coordinator.py"
NCCL_CHANNELS, NCCL_CONNECTIONS, NCCL_BYTES = 24, 3, int(5.6 * 2**20)
"""Channels between accelerators of a host, each with a ring and a tree of connections, and the buffers of one: NCCL_BUFFSIZE, 4 MiB, and those of its
two protocols for small messages. An estimate from NCCL's own defaults: it was not measured."""


def buffer_items(layout: Layout, settings: ZeroSettings, shape: ModelShape, *, on_cpu: bool) -> list[Item]:
    """Items of the buffers on the device of one rank."""
    items = [*_buckets(layout, settings), *_offload(layout, settings)]
    if settings.ranks > 1 and not on_cpu:
        items.append(_nccl())
    if settings.stage == 3:
        items += _live_parameters(layout, settings, shape)
    return [item for item in items if item.bytes]


def _buckets(layout: Layout, settings: ZeroSettings) -> Iterator[Item]:
    size, width = settings.reduce_bucket, settings.compute_bytes
    if settings.wrapper == "flat" and settings.contiguous:
        if settings.stage == 1:
            width = max(width, settings.accumulation_bytes)
        count = 2 if settings.overlap else 1
        # With coalescing they are made when the backward passes are over (runtime/engine.py, _flush_coalesced_reduction_zero12).
        phases = ("step",) if settings.coalesces else ("backward",)
        yield _buffer("reduce buckets", count * size * width, f"{count} × {width} bytes × {size:,} (reduce_bucket_size)", FLAT, phases)
    elif settings.wrapper == "partitioned" and settings.contiguous:
        yield _buffer("reduce bucket", size * width, f"{width} bytes × {size:,} (reduce_bucket_size)", SHARDED, BUILT)


def _offload(layout: Layout, settings: ZeroSettings) -> Iterator[Item]:
    if settings.wrapper != "flat" or settings.offload_optimizer.device == "none":
        return
    largest = max((held.numel for held in layout.trained_ones()), default=0)
    formula = f"{settings.compute_bytes} bytes × {largest:,}, the largest trained parameter"
    yield _buffer("gradient on its way to the host", largest * settings.compute_bytes, formula, FLAT, BUILT)


def _live_parameters(layout: Layout, settings: ZeroSettings, shape: ModelShape) -> Iterator[Item]:
    """Parameters that are whole at the worst moment, which is where forward turns to backward.

    A parameter used again within max_reuse_distance is not let go of, so what is within half of it from the end stays from its forward to its
    backward use; the module at work and what is fetched ahead of it come on top.
    """
    if settings.ranks == 1:
        return
    sharded = [held for held in layout.held if not is_persistent(held, settings)]
    whole = sum(held.whole_bytes * held.copies for held in sharded)
    numbers = sum(held.stored_numel * held.copies for held in sharded)
    module = _largest_module(sharded, layout, shape)
    kept = settings.max_reuse_distance // 2
    ahead = min(settings.prefetch_bucket, settings.max_live)
    live = min(numbers, kept + module + ahead)
    mean = whole / numbers if numbers else 0
    formula = f"{live:,} of {numbers:,} numbers: {module:,} at work, {ahead:,} ahead, {kept:,} kept for their next use"
    yield _buffer("gathered weights", round(live * mean), formula, COORDINATOR, ("backward",))


def _largest_module(sharded: list[Held], layout: Layout, shape: ModelShape) -> int:
    """Numbers that are gathered at once: a whole decoder layer where nothing is frozen (ftcore/engine_leaves.py), else one module's."""
    largest = max((held.stored_numel for held in sharded), default=0)
    if any(True for _ in layout.frozen_ones()):
        return largest
    layer = max(sum(held.stored_numel for held in sharded if held.tensor.layers and number in held.tensor.layers) for number in range(shape.layers))
    return max(largest, layer)


def _buffer(name: str, size: int, formula: str, source: str, phases: tuple[str, ...]) -> Item:
    return Item(name=name, bytes=size, group="buffers", formula=formula, source=source, phases=phases)


def _nccl() -> Item:
    formula = f"{NCCL_CHANNELS} channels × {NCCL_CONNECTIONS} connections × {NCCL_BYTES:,} bytes, an estimate"
    size = NCCL_CHANNELS * NCCL_CONNECTIONS * NCCL_BYTES
    return Item(
        name="NCCL's buffers", bytes=size, group="communication", formula=formula, source="NCCL_BUFFSIZE, docs.nvidia.com/deeplearning/nccl", phases=BUILT
    )
