"""Digests of files, remembered for as long as a file is the same one: a warm start reads none of them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftcore.spec.run_dir import write_atomic

SETTLED_NS = 20_000_000
"""A file's times go on in steps of up to 10 ms: one that changed within the same step would look as it did before."""


def file_digest(path: Path, cache_dir: Path) -> str:
    """sha256 of a file; remembered in the cache for as long as its path, inode, size and times stay.

    The time of the last change to the inode is among them: that one can't be set back as the modification time can.
    """
    return remembered(path, cache_dir, "sha256", _sha256)


def remembered(path: Path, cache_dir: Path, name: str, compute: Callable[[Path], str]) -> str:
    """`compute` of a file's content, or what it gave when the file was last the same; `name` says which fact of the file that is."""
    memory = memory_path(path, cache_dir)
    known = _known(memory)
    identity = file_identity(path)
    if known.get("identity") == identity and isinstance(known.get(name), str):
        return str(known[name])
    _settle(identity)
    value = compute(path)
    facts = known if known.get("identity") == identity else {}
    # What changed while it was read is not remembered: the next one reads it again.
    if file_identity(path) == identity:
        write_atomic(memory, json.dumps({**facts, "identity": identity, name: value}) + "\n")
    return value


def memory_path(path: Path, cache_dir: Path) -> Path:
    """Where the facts about a file are remembered."""
    return cache_dir / "digests" / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"


def file_identity(path: Path) -> list[Any]:
    """What a file must keep to be taken for the same: place, inode, bytes, and the times of its last changes in ns. Raises OSError when it is not there."""
    state = path.stat()
    return [str(path.resolve()), state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]


def remembered_file(memory: Path) -> str:
    """The path of the file that a memory is about; empty when it can't be read."""
    identity = _known(memory).get("identity")
    return str(identity[0]) if isinstance(identity, list) and identity else ""


def _known(memory: Path) -> dict[str, Any]:
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _settle(identity: list[Any]) -> None:
    """Waits until the time stamp of any later change differs from the file's own."""
    age = time.time_ns() - max(identity[3], identity[4])
    if 0 <= age < SETTLED_NS:
        time.sleep((SETTLED_NS - age) / 1e9)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
