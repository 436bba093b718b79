"""Main memory of the hosts and their NVMe: what offload moves there, pinned buffers, and the weights while they are read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.items import Item
from launcher.memory.layout import Layout
from launcher.memory.states import BUILT, FLAT, PARTITION, PLAIN, SHARDED, SOURCES, TRAINING, States, is_persistent, part_bytes
from launcher.memory.zero_settings import ZeroSettings

FLOAT = 4
PROCESS_BYTES = 360 * 2**20
"""Anonymous memory of a rank before it has a model: RssAnon of /proc/self/status after `import ftcore.run`, 335,124 kB."""
SWAPPER = "deepspeed/runtime/swap_tensor/partitioned_param_swapper.py"


def host_items(layout: Layout, settings: ZeroSettings, states: States, resolved: ResolvedSpec, *, on_cpu: bool) -> list[Item]:
    """Items in main memory of a rank (`scope` rank) or of the first host alone (`scope` run), and on NVMe of a rank."""
    process = Item(
        name="the process",
        bytes=PROCESS_BYTES,
        place="host",
        group="process",
        formula="torch, DeepSpeed and transformers, imported",
        source="launcher/memory/host.py",
    )
    # Ranks on the host read their weights to where they stay.
    load = [] if on_cpu and settings.stage != 3 else list(_load(layout, settings, resolved))
    items = [
        process,
        *load,
        *_optimizer(layout, _unpinned(settings) if on_cpu else settings, states),
        *_parameters(layout, _unpinned(settings) if on_cpu else settings),
        *_save(states, settings, resolved),
    ]
    return [item for item in items if item.bytes]


def node_bytes(items: list[Item], resolved: ResolvedSpec) -> dict[str, int]:
    """Host's name -> main memory at the worst moment; names may repeat in a hostfile, their ranks then add up."""
    found: dict[str, dict[str, int]] = {}
    for index, host in enumerate(resolved.hosts):
        sums = found.setdefault(host.name, dict.fromkeys(("load", *BUILT), 0))
        for item in items:
            if item.place != "host" or (item.scope == "run" and index):
                continue
            count = host.slots if item.scope == "rank" else 1
            for phase in item.phases or tuple(sums):
                sums[phase] += count * item.bytes
    return {name: max(sums.values()) for name, sums in found.items()}


def _load(layout: Layout, settings: ZeroSettings, resolved: ResolvedSpec) -> Iterator[Item]:
    """What from_pretrained reads: all of it in every rank, or by rank 0 alone where it is partitioned at once (transformers/integrations/deepspeed.py)."""
    base = [held for held in layout.held if not held.adapter]
    if resolved.spec.method.type == "qlora":
        # Read matrix by matrix, and quantised at once.
        largest = max((held.numel for held in base), default=0)
        yield _host("largest matrix being quantised", 2 * largest, "load", f"2 bytes × {largest:,}", "transformers/integrations/bitsandbytes.py", ("load",))
        return
    whole = sum(held.whole_bytes * held.copies for held in base)
    if settings.stage == 3:
        formula = "the model's files, read by rank 0, which hands out each weight in turn"
        yield _host("weights being read", whole, "load", formula, "transformers/integrations/deepspeed.py", ("load",), scope="run")
    else:
        formula = "the whole model, read by every rank before it goes to its device"
        yield _host("weights being read", whole, "load", formula, "transformers/modeling_utils.py", ("load",))


def _optimizer(layout: Layout, settings: ZeroSettings, states: States) -> Iterator[Item]:
    if settings.offload_optimizer.device != "cpu":
        return
    own, source, pinned = states.own, SOURCES[settings.wrapper], settings.offload_optimizer.pin_memory
    how = ", pinned" if pinned else ""
    yield _host("fp32 master weights", own * FLOAT, "optimizer", f"4 bytes × {own:,}", source, BUILT)
    yield _host("gradients of the optimizer", _pinned(own * FLOAT, pinned), "gradients", f"4 bytes × {own:,}{how}", source, BUILT)
    yield _host("optimizer state", states.state_bytes, "optimizer", f"{states.state_bytes / max(own, 1):.4g} bytes × {own:,}", PLAIN, TRAINING)
    width = settings.compute_bytes
    if settings.wrapper == "flat":
        yield _host("weights on their way back", _pinned(own * width, pinned), "weights", f"{width} bytes × {own:,}{how}", FLAT, BUILT)
        largest = max((held.numel for held in layout.trained_ones()), default=0)
        yield _host("a gradient on its way", _pinned(largest * width, pinned), "buffers", f"{width} bytes × {largest:,}{how}", FLAT, BUILT)
        if settings.accumulation_bytes == width:
            yield _host("gradients added up", _pinned(own * width, pinned), "gradients", f"{width} bytes × {own:,}{how}", FLAT, TRAINING)
    else:
        size = _pinned(own * settings.accumulation_bytes, pinned)
        yield _host("gradients added up", size, "gradients", f"{settings.accumulation_bytes} bytes × {own:,}{how}", SHARDED, BUILT)


def _parameters(layout: Layout, settings: ZeroSettings) -> Iterator[Item]:
    offload = settings.offload_param
    if offload.device == "none":
        return
    away = [held for held in layout.held if not is_persistent(held, settings)]
    parts = sum(part_bytes(held, settings) * held.copies for held in away)
    formula = f"1/{settings.ranks} of the weights"
    if offload.device == "cpu":
        yield _host("weights, own part", _pinned(parts, offload.pin_memory), "weights", formula + (", pinned" if offload.pin_memory else ""), PARTITION, ())
        return
    width = settings.compute_bytes
    buffers = offload.buffer_count * offload.buffer_size * width
    yield Item(name="weights, own part", bytes=parts, place="nvme", group="weights", formula=formula, source=SWAPPER)
    yield _host("swap buffers", _pinned(buffers, True), "buffers", f"{offload.buffer_count} × {width} bytes × {offload.buffer_size:,}, pinned", SWAPPER, ())
    trained = sum(math.ceil(held.numel / settings.ranks) * held.copies for held in layout.trained_ones())
    kept = min(trained, offload.max_in_cpu)
    yield _host("trained weights, own part", kept * width, "weights", f"{width} bytes × {kept:,} (at most max_in_cpu)", SHARDED, BUILT)


def _save(states: States, settings: ZeroSettings, resolved: ResolvedSpec) -> Iterator[Item]:
    checkpoint = resolved.spec.checkpoint
    if checkpoint.save_async and checkpoint.save_steps and settings.stage:
        size = states.own * FLOAT + states.state_bytes
        formula = "masters and optimizer state that are not written when the next step comes, all of them at worst"
        yield _host("a checkpoint being written", size, "checkpoint", formula, "ftcore/checkpoint/snapshot.py", TRAINING)


def _unpinned(settings: ZeroSettings) -> ZeroSettings:
    """Ranks on the host have no accelerator to pin memory for."""
    optimizer, parameters = settings.offload_optimizer, settings.offload_param
    return replace(settings, offload_optimizer=replace(optimizer, pin_memory=False), offload_param=replace(parameters, pin_memory=False))


def _pinned(size: int, pinned: bool) -> int:
    """torch's allocator of pinned memory rounds up to a power of two (c10/core/CachingHostAllocator.h)."""
    return 1 << max(size - 1, 0).bit_length() if pinned and size else size


def _host(name: str, size: int, group: str, formula: str, source: str, phases: tuple[str, ...], scope: str = "rank") -> Item:
    return Item(name=name, bytes=size, place="host", scope=scope, group=group, formula=formula, source=source, phases=phases)
