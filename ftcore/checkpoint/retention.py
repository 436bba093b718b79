"""Which checkpoints stay. Rank 0 alone renames and deletes."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from ftcore.checkpoint.layout import BROKEN, REMOVED, broken, newest_first, partials, update_of
from ftcore.checkpoint.manifest import read_manifest
from ftcore.spec.errors import CheckpointError

KEPT_BROKEN = 3
"""Damaged checkpoints that stay for a look, beside the whole ones. Each may be as large as the model's state."""


STAMP_NS = 1_000_000_000
"""Between the stamps of two folders set aside; some file systems keep whole seconds only."""


def best_of(committed: Path) -> Path | None:
    """The checkpoint with the lowest metric among this one and those before it, the earliest of equal ones; None where none has a metric."""
    update = update_of(committed) or 0
    measured = []
    for path in newest_first(committed.parent):
        with contextlib.suppress(CheckpointError):
            manifest = read_manifest(path)
            if manifest.metric is not None and manifest.update <= update:
                measured.append((manifest.metric, manifest.update, path))
    return min(measured)[2] if measured else None


def prune(committed: Path, *, keep: int, best: Path | None = None) -> list[Path]:
    """Keeps the checkpoint just committed, the `keep` - 1 before it and `best`; removes older ones and what broken saves left.

    Returns what it removed. Only folders that have a sound manifest and are not newer than `committed` count: anything
    else can't push a good checkpoint out. Newer ones are not of this training, which has just come to `committed`, and
    those without a sound manifest can't be resumed from: both are set aside, so that they are never taken for progress later.
    """
    checkpoints, update = committed.parent, update_of(committed) or 0
    older = []
    for path in newest_first(checkpoints):
        if path == committed:
            continue
        if (update_of(path) or 0) > update or not _has_manifest(path):
            set_aside(path)
        else:
            older.append(path)
    doomed = [path for path in older[max(0, keep - 1) :] if path != best]
    leftovers = [*partials(checkpoints), *broken(checkpoints)[KEPT_BROKEN:]]
    for path in (*leftovers, *checkpoints.glob(f"update_*{REMOVED}")):
        shutil.rmtree(path, ignore_errors=True)
    for path in doomed:
        with contextlib.suppress(OSError):
            shutil.rmtree(rename_for_removal(path), ignore_errors=True)
    return [*doomed, *leftovers]


def set_aside_newer(found: Path) -> None:
    """Sets aside the checkpoints that a resume from `found` passed over, so that none of them takes the place of a whole one.

    One that can't be renamed stays: the next save tries again, and fails on all ranks when it can't either.
    """
    for path in newest_first(found.parent):
        if path == found:
            return
        with contextlib.suppress(OSError):
            set_aside(path)


def set_aside(path: Path) -> None:
    """Renames a damaged checkpoint to NAME.broken, in place of one that was set aside under that name before. Raises OSError."""
    aside = path.with_name(path.name + BROKEN)
    shutil.rmtree(aside, ignore_errors=True)
    # Those set aside last are the ones kept. Counted up rather than read from the clock, which may have gone backwards.
    stamp = STAMP_NS + max((other.stat().st_mtime_ns for other in broken(path.parent)), default=0)
    os.utime(path, ns=(stamp, stamp))
    os.rename(path, aside)


def _has_manifest(checkpoint: Path) -> bool:
    try:
        read_manifest(checkpoint)
    except CheckpointError:
        return False
    return True


def rename_for_removal(checkpoint: Path) -> Path:
    """Renames a checkpoint to NAME.removed, in place of what an earlier deletion left there, and returns that. Raises OSError.

    To be done before it is deleted: a kill in the middle must not leave half a checkpoint under a checkpoint's name.
    """
    doomed = checkpoint.with_name(checkpoint.name + REMOVED)
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(checkpoint, doomed)
    return doomed
