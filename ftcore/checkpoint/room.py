"""Whether the checkpoints of a run will fit where they go, found out before anything is trained."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from pathlib import Path

from ftcore.checkpoint.layout import newest_first
from ftcore.coded_moments import BLOCK
from ftcore.dist import gather_objects
from ftcore.engine import Engine
from ftcore.engine_state import owned_slices, trained_shapes
from ftcore.spec.errors import CheckpointError
from ftcore.spec.sections import OptimizerSection, Spec

SMALL_FILES_BYTES = 2**20
"""Manifest, indexes, cursor and random states of a checkpoint, about."""
MIB, GIB = 2**20, 2**30


def checkpoint_bytes(engine: Engine, spec: Spec) -> int:
    """Bytes of one checkpoint over all ranks: masters and moments as the slices hold them (12 a trained parameter with AdamW), and buffers."""
    shapes, settings = trained_shapes(engine), dict(engine.named_groups())
    of_state = {name: state_bytes(shape, spec.optimizer, is_hidden=bool(settings[name].get("is_hidden"))) for name, shape in shapes.items()}
    mine = sum(owned.numel * (owned.flat.element_size() + of_state[owned.name]) for owned in owned_slices(engine))
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in engine.module.buffers())
    return math.ceil(sum(gather_objects(mine, engine.ranks))) + buffers + SMALL_FILES_BYTES


def state_bytes(shape: tuple[int, ...], optimizer: OptimizerSection, *, is_hidden: bool) -> float:
    """Bytes of optimizer state for each element of a parameter, its master not counted."""
    if optimizer.type == "sgd":
        return 4.0 * (optimizer.momentum != 0)
    if optimizer.type == "adafactor":
        return 4.0 if len(shape) < 2 else 4 / shape[-1] + 4 / shape[-2]
    if is_hidden:
        return 4.0 if optimizer.type == "muon" else 2 * (1 + 4 / BLOCK)
    return 8.0


def require_room(engine: Engine, checkpoints: Path, spec: Spec) -> str:
    """Makes the folder, tries to write there on every rank, and measures the room; every rank must call it.

    Returns a note when the newest `save_total_limit` (and the best) won't fit beside the one being written, empty when they will.
    Raises CheckpointError on all ranks when a rank can't write there, or not even one more checkpoint fits.
    """
    needed = checkpoint_bytes(engine, spec)
    views = gather_objects(_look(checkpoints), engine.ranks)
    refused = [f"rank {rank} can't write there: {reason}" for rank, (reason, _, _) in enumerate(views) if reason]
    if refused:
        raise CheckpointError("; ".join(refused), where=str(checkpoints), fix="correct the folder's permissions, or take a run folder on another disk")
    free, present = min(free for _, free, _ in views), views[0][2]
    if free < needed:
        raise CheckpointError(
            f"a checkpoint needs {_size(needed)}, {_size(free)} are free there",
            where=str(checkpoints),
            fix="free disk space, or take a run folder on another disk",
        )
    kept = spec.checkpoint.save_total_limit + bool(spec.checkpoint.metric_for_best_model)
    planned = max(1, kept + 1 - present) * needed
    if free >= planned:
        return ""
    return (
        f"{kept} checkpoints of {_size(needed)} are to be kept and one more is written before the oldest goes: "
        f"{_size(planned)} more, {_size(free)} are free in {checkpoints}; lower checkpoint.save_total_limit or free disk space"
    )


def _size(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / MIB:.1f} MiB"


def _look(checkpoints: Path) -> tuple[str, int, int]:
    """Why this process can't write there, the bytes free, and how many checkpoints are there."""
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
        handle, probe = tempfile.mkstemp(dir=checkpoints, prefix=".probe.")
        try:
            os.write(handle, b"probe")
        finally:
            os.close(handle)
            os.unlink(probe)
        return "", shutil.disk_usage(checkpoints).free, len(newest_first(checkpoints))
    except OSError as error:
        return str(error), 0, 0
