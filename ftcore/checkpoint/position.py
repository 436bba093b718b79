"""The position of the newest whole checkpoint, read without a rank and without torch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ftcore.batch.cursor import Cursor
from ftcore.checkpoint.find import find_newest_whole
from ftcore.checkpoint.layout import CURSOR, read_text
from ftcore.checkpoint.manifest import damage
from ftcore.spec.errors import CheckpointError


def newest_position(checkpoints: Path, *, digests: bool) -> Cursor | None:
    """The cursor that the ranks would go on from; None when there is none, or it can't be read: then they say why.

    Without `digests` a checkpoint counts as whole by the sizes of its files, which takes no time.
    """
    found = find_newest_whole(checkpoints, partial(damage, digests=digests)).found
    try:
        return None if found is None else Cursor.from_json(read_text(found.path / CURSOR))
    except (OSError, UnicodeDecodeError, CheckpointError):
        return None
