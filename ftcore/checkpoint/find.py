"""Find the newest checkpoint that is whole, and say why newer ones were passed over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ftcore.checkpoint.layout import newest_first, partials
from ftcore.checkpoint.manifest import FileEntry, Manifest, damage, read_manifest
from ftcore.spec.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Found:
    path: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Search:
    """`found` is None when no checkpoint is whole; `skipped` says of each newer or broken one why it was not taken."""

    found: Found | None
    skipped: tuple[str, ...]


Verify = Callable[[Path, tuple[FileEntry, ...]], list[str]]


def find_newest_whole(checkpoints: Path, verify: Verify = damage) -> Search:
    """The newest checkpoint whose every file has the size and digest of its manifest.

    The file `latest` is not consulted: it can be missing or stale. `verify` may share the digests out over ranks.
    """
    skipped = [f"{path.name}: the save did not finish" for path in partials(checkpoints)]
    for path in newest_first(checkpoints):
        try:
            manifest = read_manifest(path)
        except CheckpointError as error:
            skipped.append(f"{path.name}: {error.problems[0].what}")
            continue
        wrong = verify(path, manifest.files)
        if not wrong:
            return Search(Found(path, manifest), tuple(skipped))
        skipped.append(f"{path.name}: {'; '.join(wrong)}")
    return Search(None, tuple(skipped))
