"""Weights, gradients, master copy and the optimizer's state, as DeepSpeed 0.19.8 holds them on one rank."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ftcore.spec.sections import Spec
from launcher.memory.items import Item
from launcher.memory.layout import Held, Layout
from launcher.memory.step_groups import StepGroup, step_groups
from launcher.memory.zero_settings import ZeroSettings

FLOAT = 4
BUILT = ("initialise", "backward", "step")
TRAINING = ("backward", "step")
FLAT = "deepspeed/runtime/zero/stage_1_and_2.py"
BF16 = "deepspeed/runtime/bf16_optimizer.py"
SHARDED = "deepspeed/runtime/zero/stage3.py"
PARTITION = "deepspeed/runtime/zero/partition_parameters.py"
PLAIN = "torch/optim"
SOURCES = {"none": PLAIN, "flat": FLAT, "bf16": BF16, "partitioned": SHARDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Numbers (not bytes) that the items are made from."""

    groups: tuple[StepGroup, ...]
    trained: int
    own: int
    """Of which the rank steps: its part of the flat tensors, padding included; in stage 0 all of them."""
    state_bytes: int
    """Of the optimizer's state on the rank."""


def count_states(layout: Layout, settings: ZeroSettings, spec: Spec) -> States:
    """What a rank holds and steps."""
    groups, ranks = step_groups(layout, spec), settings.ranks
    parts = [group.numel if settings.stage == 0 else group.sharded(ranks) if settings.stage == 3 else group.partition(ranks) for group in groups]
    return States(
        groups=groups,
        trained=layout.trained,
        own=sum(parts),
        state_bytes=math.ceil(sum(part * group.state_bytes for part, group in zip(parts, groups, strict=True))),
    )


def state_items(layout: Layout, settings: ZeroSettings, spec: Spec) -> list[Item]:
    """Items of weights, gradients and optimizer on the device of one rank; offloaded ones are those of launcher.memory.host."""
    states = count_states(layout, settings, spec)
    weights = _sharded_weights(layout, settings, spec) if settings.stage == 3 else _whole_weights(layout, settings, states)
    items = [*weights, *_gradients(states, settings)]
    if settings.offload_optimizer.device == "none":
        items += [*_master(states, settings), *_moments(states, settings, spec), *_building(states, settings)]
    return [item for item in items if item.bytes]


def is_persistent(held: Held, settings: ZeroSettings) -> bool:
    """Whether stage 3 keeps a parameter whole on every rank beside its part."""
    return settings.ranks > 1 and held.stored_numel <= settings.persistence_threshold


def _whole_weights(layout: Layout, settings: ZeroSettings, states: States) -> Iterator[Item]:
    frozen = sum(held.whole_bytes * held.copies for held in layout.frozen_ones())
    numbers = sum(held.total for held in layout.frozen_ones())
    yield _weights("frozen weights", frozen, f"{numbers:,} parameters, each rank holds all", FLAT if settings.stage else PLAIN)
    yield from _tables(layout)
    padded = states.trained if settings.stage == 0 else sum(group.padded(settings.ranks) for group in states.groups)
    formula = f"{settings.compute_bytes} bytes × {padded:,} trained parameters, each rank holds all"
    yield _weights("trained weights", padded * settings.compute_bytes, formula, SOURCES[settings.wrapper])


def _sharded_weights(layout: Layout, settings: ZeroSettings, spec: Spec) -> Iterator[Item]:
    if settings.offload_param.device == "none":
        for name, group in (("frozen weights", layout.frozen_ones()), ("trained weights", layout.trained_ones())):
            each = list(group)
            size = sum(part_bytes(held, settings) * held.copies for held in each)
            numbers = sum(held.total for held in each)
            yield _weights(name, size, f"{numbers:,} parameters, 1/{settings.ranks} on each rank", PARTITION)
    if spec.method.type == "qlora":
        whole = sum((held.whole_bytes - part_bytes(held, settings)) * held.copies for held in layout.held if not held.adapter)
        formula = "every rank loads and quantises all of the base before it is sharded"
        yield _weights("rest of the base while loading", whole, formula, "ftcore/model/build.py", ("load",))
    yield from _tables(layout)
    kept = [held for held in layout.held if is_persistent(held, settings)]
    numbers = sum(held.stored_numel * held.copies for held in kept)
    size = sum(held.whole_bytes * held.copies for held in kept)
    yield _weights("small weights kept whole", size, f"{numbers:,} numbers of parameters of at most {settings.persistence_threshold:,} each", PARTITION, BUILT)
    if settings.hpz_ranks > 1:
        second = sum(math.ceil(held.stored_numel / settings.hpz_ranks) * held.element_bytes * held.copies for held in layout.held)
        yield _weights("second copy of the weights", second, f"all weights, 1/{settings.hpz_ranks} on each rank (zero_hpz_partition_size)", PARTITION, BUILT)


def part_bytes(held: Held, settings: ZeroSettings) -> int:
    """Bytes of a rank's part of one copy of a parameter in stage 3."""
    part = math.ceil(held.stored_numel / settings.ranks)
    if settings.quantised_frozen and not held.trained and held.element_bytes > 1:
        # In 8 bits, with a scale for each 2048 numbers (runtime/zero/partition_parameters.py, CUDAQuantizer).
        return part + FLOAT * max(1, part // 2048)
    return part * held.element_bytes


def _tables(layout: Layout) -> Iterator[Item]:
    size = sum(held.table_bytes * held.copies for held in layout.held)
    yield _weights(
        "scales of quantised weights", size, "of blocks of 64 numbers (4 bits) or of rows (8 bits), whole on each rank", "bitsandbytes/functional.py"
    )


def _gradients(states: States, settings: ZeroSettings) -> Iterator[Item]:
    local, own, width = states.trained, states.own, settings.accumulation_bytes
    source, offloads = SOURCES[settings.wrapper], settings.offload_optimizer.device != "none"
    if settings.wrapper == "none":
        yield _gradient("gradients", local * settings.compute_bytes, f"{settings.compute_bytes} bytes × {local:,}, whole", source, TRAINING)
    elif settings.wrapper == "bf16":
        padded = sum(group.padded(settings.ranks) for group in states.groups)
        yield _gradient("gradients of a micro-step", local * 2, f"2 bytes × {local:,}, whole", source, TRAINING)
        yield _gradient("gradients added up in fp32", padded * width, f"{width} bytes × {padded:,}, whole", source, BUILT)
    elif settings.wrapper == "partitioned":
        if settings.coalesces:
            size = local * settings.compute_bytes
            yield _gradient("gradients until they are reduced", size, f"{settings.compute_bytes} bytes × {local:,}, whole (coalesced)", source, TRAINING)
        if not offloads:
            yield _gradient("gradients, own part", own * width, f"{width} bytes × {own:,}", source, BUILT)
    else:
        yield from _flat_gradients(states, settings, offloads=offloads)


def _flat_gradients(states: States, settings: ZeroSettings, *, offloads: bool) -> Iterator[Item]:
    local, own, width = states.trained, states.own, settings.accumulation_bytes
    separate = width != settings.compute_bytes
    if settings.stage == 1:
        size = width if separate else settings.compute_bytes
        yield _gradient("gradients added up", local * size, f"{size} bytes × {local:,}, whole until the update's end", FLAT, TRAINING)
    elif settings.coalesces:
        size = local * settings.compute_bytes
        yield _gradient("gradients until they are reduced", size, f"{settings.compute_bytes} bytes × {local:,}, whole (coalesced)", FLAT, TRAINING)
    if offloads and not separate:
        return
    if not separate and (settings.stage == 1 or settings.coalesces):
        return  # the part takes the place of the whole gradients, one after the other
    # Coalesced, and in stage 1, the reduced part is made when the last backward pass is over.
    phases = TRAINING if settings.stage == 2 and not settings.coalesces else ("step",)
    yield _gradient("gradients, own part", own * width, f"{width} bytes × {own:,}", FLAT, phases)


def _building(states: States, settings: ZeroSettings) -> Iterator[Item]:
    """What making the flat tensors takes for a moment: a second copy of the trained weights, and later, beside the master copy, an empty gradient of it."""
    if settings.wrapper == "flat" and settings.offload_optimizer.device == "none":
        padded = sum(group.padded(settings.ranks) for group in states.groups)
        size = max(padded * settings.compute_bytes - states.own * FLOAT, states.own * FLOAT)
        formula = f"a copy of {padded:,} weights, before there is a master of {states.own:,}; then a gradient beside that"
        yield Item(name="making flat tensors", bytes=size, group="weights", formula=formula, source=FLAT, phases=("initialise",))


def _master(states: States, settings: ZeroSettings) -> Iterator[Item]:
    if settings.wrapper == "none":
        return  # the optimizer steps the weights themselves; stage 3 steps a flat copy of them in fp32 too (measured)
    formula = f"4 bytes × {states.own:,}"
    yield Item(name="fp32 master weights", bytes=states.own * FLOAT, group="optimizer", formula=formula, source=SOURCES[settings.wrapper], phases=BUILT)


def _moments(states: States, settings: ZeroSettings, spec: Spec) -> Iterator[Item]:
    each = states.state_bytes / states.own if states.own else 0.0
    formula = f"{each:.4g} bytes × {states.own:,} ({spec.optimizer.type})"
    yield Item(name="optimizer state", bytes=states.state_bytes, group="optimizer", formula=formula, source=step_source(spec), phases=TRAINING)


def step_source(spec: Spec) -> str:
    """Where the optimizer's state is made."""
    return PLAIN if spec.optimizer.type in ("adamw", "sgd") else "ftcore/optimizers.py"


def _weights(name: str, size: int, formula: str, source: str, phases: tuple[str, ...] = ()) -> Item:
    return Item(name=name, bytes=size, group="weights", formula=formula, source=source, phases=phases)


def _gradient(name: str, size: int, formula: str, source: str, phases: tuple[str, ...]) -> Item:
    return Item(name=name, bytes=size, group="gradients", formula=formula, source=source, phases=phases)
