"""The save of a run that was asked to stop: in a hurry, and with a word on what is left when it fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ftcore.batch.cursor import Cursor
from ftcore.checkpoint.find import list_checkpoints
from ftcore.checkpoint.manifest import Manifest
from ftcore.checkpoint.saver import SaveOutcome, Saver
from ftcore.spec.errors import CheckpointError, Problem

PAUSES_S = (1.0, 5.0)
"""Waits before the save is tried again: somebody waits for the machine."""


def hurried_save(saver: Saver, checkpoints: Path, cursor: Cursor, metric: float | None, *, evaluation_due: bool) -> Iterator[SaveOutcome]:
    """`Saver.finish`, sooner given up. Raises CheckpointError on all ranks, which also says where the run can go on from."""
    try:
        yield from saver.finish(cursor, metric, evaluation_due=evaluation_due, pauses_s=PAUSES_S)
    except CheckpointError as error:
        whole = next((path.name for path, manifest in list_checkpoints(checkpoints).candidates if isinstance(manifest, Manifest)), None)
        left = f"{whole} is untouched, and --resume goes on from there" if whole else "there is no earlier checkpoint: --resume starts from update 0"
        raise CheckpointError([*error.problems, Problem(what=f"the run was asked to stop after update {cursor.next_update}; {left}")]) from error
