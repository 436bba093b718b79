"""Where things lie in RUN/checkpoints, and which of them are whole."""

from __future__ import annotations

import errno
import re
from pathlib import Path

MANIFEST = "manifest.json"
CURSOR = "cursor.json"
BUFFERS = "buffers.safetensors"
STATE = "state.safetensors"
INDEX = "index.json"
RNG = "rng.json"
LATEST = "latest"
BEST = "best"
BROKEN = ".broken"
"""Ends the name of a damaged checkpoint that was set aside."""
REMOVED = ".removed"
"""Ends the name of an old checkpoint while it is being deleted."""
_NAME = re.compile(r"update_([0-9]{8,})")


def checkpoint_path(checkpoints: Path, update: int) -> Path:
    """The folder of the checkpoint taken after `update` updates."""
    return checkpoints / f"update_{update:08d}"


def partial_path(checkpoints: Path, update: int) -> Path:
    """Where that checkpoint is written before it is whole."""
    return checkpoints / f"update_{update:08d}.partial"


def rank_path(checkpoint: Path, rank: int) -> Path:
    """Where one rank's files lie in a checkpoint."""
    return checkpoint / f"rank_{rank}"


def read_text(path: Path) -> str:
    """The text of a file; raises OSError for what is none: a pipe would never end, nor would a device."""
    if not path.is_file() and path.exists():
        raise OSError(errno.EINVAL, "not a file", str(path))
    return path.read_text(encoding="utf-8")


def update_of(path: Path) -> int | None:
    """Updates done when the checkpoint at `path` was taken, or None when the name is not a checkpoint's."""
    match = _NAME.fullmatch(path.name)
    return int(match.group(1)) if match else None


def newest_first(checkpoints: Path) -> list[Path]:
    """Folders named like checkpoints, by number (10000 after 9900). They may still be damaged."""
    if not checkpoints.is_dir():
        return []
    named = [(update, path) for path in checkpoints.iterdir() if path.is_dir() and (update := update_of(path)) is not None]
    return [path for _, path in sorted(named, reverse=True)]


def partials(checkpoints: Path) -> list[Path]:
    """Folders that a save left behind before it was whole."""
    return sorted(checkpoints.glob("update_*.partial")) if checkpoints.is_dir() else []


def broken(checkpoints: Path) -> list[Path]:
    """Damaged checkpoints that were set aside, the last one first.

    By their stamps, which `retention.set_aside` counts up from the highest there is: no clock decides what goes.
    """
    return sorted(checkpoints.glob(f"update_*{BROKEN}"), key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)
