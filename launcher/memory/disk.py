"""Disk that a run takes in its folder: checkpoints kept and the one being written, and the exported model."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ftcore.spec.sections import Spec
from launcher.memory.items import Item
from launcher.memory.layout import BYTES, Layout
from launcher.memory.step_groups import state_bytes

FLOAT = 4
SMALL_FILES_BYTES = 2**20
"""Manifest, indexes, cursor, random states and buffers of a checkpoint, about."""
ROOM = "ftcore/checkpoint/room.py"


def disk_items(layout: Layout, spec: Spec) -> list[Item]:
    """Items on disk of the whole run."""
    return [*_checkpoints(layout, spec), _model(layout, spec)]


def checkpoint_bytes(layout: Layout, spec: Spec) -> int:
    """Bytes of one checkpoint over all ranks: the fp32 master and the optimizer's state of what is trained, 12 bytes a parameter with AdamW."""
    masters = FLOAT * layout.trained
    states = sum(state_bytes(held, spec.optimizer) * held.copies for held in layout.trained_ones())
    return masters + round(states) + SMALL_FILES_BYTES


def _checkpoints(layout: Layout, spec: Spec) -> Iterator[Item]:
    each, rules = checkpoint_bytes(layout, spec), spec.checkpoint
    kept = max(1, rules.save_total_limit) + bool(rules.metric_for_best_model)
    saves = _saves(spec)
    named = "the newest and the best" if rules.metric_for_best_model else "the newest"
    if saves is not None and saves <= kept:
        kept, named = saves, "of the run's end" if saves == 1 else "all of the run"
    yield Item(
        name="checkpoints kept", bytes=kept * each, place="disk", scope="run", group="checkpoint", formula=f"{kept} ({named}) × {each:,} bytes", source=ROOM
    )
    if saves is None or saves > kept:
        yield Item(name="a checkpoint being written", bytes=each, place="disk", scope="run", group="checkpoint", formula=f"{each:,} bytes", source=ROOM)


def _saves(spec: Spec) -> int | None:
    """How many checkpoints an unbroken run writes; None: more than can be told from the spec."""
    rules, updates = spec.checkpoint, spec.train.max_steps
    if rules.metric_for_best_model:
        return None
    if not rules.save_steps:
        return 1
    return math.ceil(updates / rules.save_steps) if updates else None


def _model(layout: Layout, spec: Spec) -> Item:
    """RUN/model: the adapters, or the whole model."""
    if spec.method.type == "full":
        size, formula = layout.parameters * BYTES[str(spec.model.dtype)], f"{spec.model.dtype} × {layout.parameters:,} parameters"
    else:
        size = sum(held.whole_bytes * held.copies for held in layout.held if held.adapter)
        formula = f"the adapter's {sum(held.total for held in layout.held if held.adapter):,} parameters"
    return Item(name="the exported model", bytes=size, place="disk", scope="run", group="checkpoint", formula=formula, source="ftcore/export_forms.py")
