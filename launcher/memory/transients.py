"""What is alive for a moment only, beside states and activations: copies of the optimizer's step, and the buffer that ZeRO-3 gathers weights through.

A phase's total is the highest moment of it, so that what a moment lacks of the others is taken off. Found by tracking storages: benchmarks/memory.py.
"""

from __future__ import annotations

from ftcore.spec.recomputation import recomputed_layers
from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.activation_row import Row
from launcher.memory.activations import AT_WORST, BYTES
from launcher.memory.items import Item
from launcher.memory.layout import Layout
from launcher.memory.shape import ModelShape
from launcher.memory.states import States, is_persistent
from launcher.memory.zero_settings import ZeroSettings

FLOAT, DOUBLE = 4, 8
STEP = "deepspeed/runtime/zero/stage_1_and_2.py and stage3.py; measured by benchmarks/memory.py"
GATHER = "deepspeed/runtime/zero/partition_parameters.py, AllGatherCoalescedHandle"


def transient_items(layout: Layout, settings: ZeroSettings, states: States) -> list[Item]:
    """The item of the step; none where nothing is copied."""
    largest = max((held.numel for held in layout.trained_ones()), default=0)
    items = _packed_twice(layout, settings)
    if settings.wrapper == "flat":
        size, formula = _flat_step(largest, settings, states)
    elif settings.wrapper == "partitioned" and settings.offload_optimizer.device == "none":
        own = min(states.own, settings.sub_group)
        size, formula = FLOAT * own, f"4 bytes × {own:,} of the rank's part, scaled and clipped aside"
    else:
        return items
    return [*items, Item(name="copies of the step", bytes=size, group="buffers", formula=formula, source=STEP, phases=("step",))] if size > 0 else items


def _packed_twice(layout: Layout, settings: ZeroSettings) -> list[Item]:
    """Stage 3 lets go of a gathered weight, but bitsandbytes still holds the packed one of the forward pass."""
    if settings.stage != 3 or settings.ranks == 1:
        return []
    packed = [held for held in layout.frozen_ones() if held.table_bytes]
    size = sum(held.whole_bytes * held.copies for held in packed)
    formula = f"{sum(held.total for held in packed):,} quantised parameters, gathered whole and held after the forward pass"
    source = "bitsandbytes/autograd/_functions.py; measured by benchmarks/memory.py"
    return [Item(name="packed weights held again", bytes=size, group="activations", formula=formula, source=source, phases=("backward",))] if size else []


def gather_items(
    resolved: ResolvedSpec, shape: ModelShape, row: Row, activations: list[Item], layout: Layout, settings: ZeroSettings, gathered: int
) -> list[Item]:
    """The item of the buffer through which stage 3 gathers weights ahead: it lives until the last weight gathered through it is used.

    `activations`: the items of the micro-step. `gathered`: bytes of the item of gathered weights. Where they are all kept from forward to backward,
    nothing is gathered at its end any more, and the buffer counts only for what it exceeds the loss's own needs by.
    """
    if settings.stage != 3 or settings.ranks == 1:
        return []
    sharded = [held for held in layout.held if not is_persistent(held, settings)]
    whole = sum(held.whole_bytes * held.copies for held in sharded)
    numbers = sum(held.stored_numel * held.copies for held in sharded)
    embedding = sum(held.stored_numel * held.copies for held in sharded if held.tensor.kind == "embedding") if shape.tied else 0
    ahead = min(settings.prefetch_bucket, numbers - embedding)
    buffer = round(ahead * whole / max(numbers, 1))
    formula = f"{ahead:,} numbers gathered ahead, beside the weights they become"
    if gathered >= whole:
        loss = sum(item.bytes for item in activations if item.group == "logits" or item.name == AT_WORST)
        buffer += _forward_rest(resolved, shape, row) - loss
        formula += ", over what the loss takes later"
    return [Item(name="gather buffer", bytes=buffer, group="buffers", formula=formula, source=GATHER, phases=("backward",))] if buffer > 0 else []


def _flat_step(largest: int, settings: ZeroSettings, states: States) -> tuple[int, str]:
    """Stages 1 and 2: the reduction that coalescing leaves for the end casts the largest gradient; then the norm is taken of float64 copies."""
    norm = DOUBLE * min(largest, states.own)
    if not settings.coalesces:
        return norm, f"8 bytes × {min(largest, states.own):,}, the largest gradient in float64 for its norm"
    cast = settings.accumulation_bytes * largest if settings.accumulation_bytes != settings.compute_bytes else 0
    buckets = settings.reduce_bucket * settings.compute_bytes + states.trained * settings.compute_bytes
    return max(cast, norm - buckets, 0), f"{settings.accumulation_bytes} bytes × {largest:,}, the largest gradient cast as it is added up"


def _forward_rest(resolved: ResolvedSpec, shape: ModelShape, row: Row) -> int:
    """Bytes in flight at the end of the last layer's forward."""
    b = BYTES[resolved.spec.train.precision]
    if shape.layers - 1 in recomputed_layers(resolved.spec.train.gradient_checkpointing, shape.layers):
        return row.tokens * b * (3 * max(shape.intermediate, shape.experts_per_token * shape.expert_intermediate) + 2 * shape.hidden)
    return row.tokens * b * shape.hidden
