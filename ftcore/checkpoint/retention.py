"""Which checkpoints stay. Rank 0 alone deletes, after a save is whole."""

from __future__ import annotations

import shutil
from pathlib import Path

from ftcore.checkpoint.layout import newest_first, partials


def prune(checkpoints: Path, *, keep: int) -> list[Path]:
    """Removes all but the `keep` newest checkpoints (at least one stays) and what broken saves left; returns what it removed.

    A folder that is already gone is no error.
    """
    doomed = [*newest_first(checkpoints)[max(1, keep) :], *partials(checkpoints)]
    for path in doomed:
        shutil.rmtree(path, ignore_errors=True)
    return doomed
