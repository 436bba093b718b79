"""Save now and wait for it: what `Saver` does while training goes on, in one call."""

from __future__ import annotations

from pathlib import Path

from ftcore.batch.cursor import Cursor
from ftcore.checkpoint.saver import Saver
from ftcore.data.prepared import ModelSource
from ftcore.engine import Engine
from ftcore.spec.sections import Spec


def save_checkpoint(engine: Engine, checkpoints: Path, *, cursor: Cursor, spec: Spec, base: ModelSource) -> Path:
    """Saves the state after `cursor.next_update` updates and returns its folder; every rank must call it.

    When any rank fails, all raise CheckpointError, and what was saved earlier is untouched.
    """
    for outcome in Saver(engine, checkpoints, spec=spec, base=base).finish(cursor, pauses_s=()):
        saved = outcome.path
    return saved
