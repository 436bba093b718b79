"""What a checkpoint holds, with the size and digest of every file; written last, so that no manifest means no checkpoint."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcore.checkpoint.digest import digest_of, file_digest
from ftcore.checkpoint.layout import BUFFERS, CURSOR, INDEX, MANIFEST, RNG, STATE, checkpoint_path, rank_path, read_text
from ftcore.spec.errors import CheckpointError
from ftcore.spec.resolved import build
from ftcore.spec.run_dir import write_atomic

MANIFEST_VERSION = 2
SELF_DIGEST = "self_digest"
"""Key of the digest over the rest of the manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    path: str
    """Relative to the checkpoint's folder."""
    bytes: int
    digest: str
    """Of its bytes, as ftcore.checkpoint.digest makes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    update: int
    """Updates done."""
    world_size: int
    """Ranks that wrote it; any number may read it."""
    zero_stage: int
    precision: str
    optimizer: str
    base: dict[str, str]
    """name, revision and digest of the base model."""
    parameters: dict[str, tuple[int, ...]]
    """Trained parameter -> shape."""
    versions: dict[str, str]
    files: tuple[FileEntry, ...]
    metric: float | None = None
    """Of metric_for_best_model at this update, lower is better; None when it was not measured."""
    evaluation_due: bool = False
    """An evaluation was due after this update and was left undone, since the run was asked to stop."""
    loss_scale: dict[str, float] = field(default_factory=dict)
    """fp16's dynamic loss scale and its counters; empty in other precisions."""
    version: int = MANIFEST_VERSION

    def write(self, checkpoint: Path) -> None:
        content = dataclasses.asdict(self)
        write_atomic(checkpoint / MANIFEST, json.dumps({**content, SELF_DIGEST: _content_digest(content)}, indent=1) + "\n")


def read_manifest(checkpoint: Path) -> Manifest:
    """Raises CheckpointError when there is none, or it is damaged, of another version or another checkpoint's, or does not list every file."""
    path = checkpoint / MANIFEST
    try:
        data = json.loads(read_text(path))
        if data["version"] != MANIFEST_VERSION:
            raise CheckpointError(f"manifest version {data['version']}, this ftlaunch reads {MANIFEST_VERSION}", where=str(path))
        if data.pop(SELF_DIGEST) != _content_digest(data):
            raise CheckpointError("the manifest has changed since it was written (its own digest differs)", where=str(path))
        manifest = build(Manifest, data)
    except FileNotFoundError as error:
        raise CheckpointError("no manifest: the save did not finish", where=str(checkpoint)) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"the manifest is damaged ({error})", where=str(path)) from error
    _require_complete(manifest, checkpoint)
    return manifest


def _require_complete(manifest: Manifest, checkpoint: Path) -> None:
    if checkpoint.name != checkpoint_path(checkpoint.parent, manifest.update).name:
        # A folder that was copied or renamed would pass its older state off as newer.
        raise CheckpointError(f"the manifest is of update {manifest.update}, which this folder's name does not say", where=str(checkpoint))
    needed = {CURSOR, BUFFERS}
    for rank in range(manifest.world_size):
        folder = rank_path(Path(), rank)
        needed |= {str(folder / name) for name in (STATE, INDEX, RNG)}
    missing = sorted(needed - {entry.path for entry in manifest.files})
    if missing:
        raise CheckpointError(f"the manifest does not list {', '.join(missing)}", where=str(checkpoint))


def _content_digest(content: dict[str, Any]) -> str:
    return digest_of(json.dumps(content, sort_keys=True).encode())


def damage(checkpoint: Path, entries: Iterable[FileEntry], *, digests: bool = True) -> list[str]:
    """What is wrong with these files, one sentence each; empty when all are as the manifest says. Without `digests` only sizes are looked at."""
    found = []
    for entry in entries:
        path = checkpoint / entry.path
        try:
            size = path.stat().st_size
            if size != entry.bytes:
                found.append(f"{entry.path} has {size} bytes, the manifest says {entry.bytes}")
            elif digests and file_digest(path) != entry.digest:
                found.append(f"{entry.path} has changed since it was written (its digest differs)")
        except OSError as error:
            found.append(f"{entry.path}: {error.strerror}")
    return found
