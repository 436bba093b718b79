"""Make a written checkpoint count: manifest last, one rename, then the names `latest` and `best` and retention. Rank 0 alone."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

from ftcore.checkpoint import layout
from ftcore.checkpoint.manifest import Manifest, read_manifest
from ftcore.checkpoint.retention import best_of, prune, set_aside
from ftcore.spec.run_dir import fsync_path, write_atomic


def clear_partial(checkpoints: Path, update: int) -> None:
    """An empty folder to write the checkpoint of that update into. Raises OSError."""
    partial = layout.partial_path(checkpoints, update)
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)


def commit(checkpoints: Path, manifest: Manifest) -> str:
    """Turns the partial folder, whose files are all durable, into a checkpoint, and moves `latest`.

    Returns what went wrong after the checkpoint counted, empty when nothing did. Raises OSError when it does not count.
    """
    partial = layout.partial_path(checkpoints, manifest.update)
    final = layout.checkpoint_path(checkpoints, manifest.update)
    manifest.write(partial)
    if final.exists():
        # Done before, found damaged on a resume, and now done again.
        set_aside(final)
    os.rename(partial, final)
    try:
        fsync_path(checkpoints)
        write_atomic(checkpoints / layout.LATEST, final.name + "\n")
    except OSError as error:
        return f"saved, but the file latest could not be written: {error}"
    return ""


def add_metric(committed: Path, metric: float | None) -> None:
    """The manifest says from here on that the evaluation which was due is done, and what it found. Raises OSError, with the manifest as it was."""
    dataclasses.replace(read_manifest(committed), metric=metric, evaluation_due=False).write(committed)


def tidy(committed: Path, *, keep: int) -> str:
    """Moves `best` and removes checkpoints that are not to be kept; returns why that was not possible, empty when it was."""
    try:
        prune(committed, keep=keep, best=point_to_best(committed))
    except OSError as error:
        return f"older checkpoints could not be tidied: {error}"
    return ""


def point_to_best(committed: Path) -> Path | None:
    """Writes `best` when another checkpoint has the lowest metric now; returns that checkpoint, None where no metric is known."""
    best = best_of(committed)
    pointer = committed.parent / layout.BEST
    if best is None:
        pointer.unlink(missing_ok=True)
    elif not pointer.is_file() or pointer.read_bytes() != f"{best.name}\n".encode():
        write_atomic(pointer, best.name + "\n")
    return best
