"""Which checkpoints stay. Rank 0 alone deletes, after a save is whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ftcore.checkpoint.layout import MANIFEST, newest_first, partials, update_of

BROKEN_SUFFIX = ".broken"
"""Ends the name of a checkpoint that a resume passed over."""


def prune(committed: Path, *, keep: int) -> list[Path]:
    """Keeps the checkpoint just committed and the `keep` - 1 before it; removes older ones and what broken saves left.

    Returns what it removed. Only folders with a manifest that are not newer than `committed` count: anything else can't
    push a good checkpoint out. Newer ones are what the resume found damaged, or they would have been resumed from;
    they are set aside, so that they are never taken for progress later. A folder that is already gone is no error.
    """
    checkpoints, update = committed.parent, update_of(committed) or 0
    numbered = [(update_of(path) or 0, path) for path in newest_first(checkpoints)]
    for number, path in numbered:
        if number > update:
            set_aside(path)
    older = [path for number, path in numbered if number < update and (path / MANIFEST).is_file()]
    doomed = [*older[max(0, keep - 1) :], *partials(checkpoints)]
    for path in doomed:
        shutil.rmtree(path, ignore_errors=True)
    return doomed


def set_aside(path: Path) -> None:
    """Renames a damaged checkpoint to NAME.broken, in place of one that was set aside under that name before."""
    aside = path.with_name(path.name + BROKEN_SUFFIX)
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(path, aside)
