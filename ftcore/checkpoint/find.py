"""Find the newest checkpoint that is whole, and say why newer ones were passed over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ftcore.checkpoint.layout import broken, newest_first, partials
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
    lost: tuple[str, ...] = ()
    """With `found` None: every checkpoint that is there and damaged, those set aside earlier too. Empty: none was ever whole."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies in a folder of checkpoints, before any digest was worked out."""

    candidates: tuple[tuple[Path, Manifest | str], ...]
    """Newest first: a folder with its manifest, or with what is wrong with that."""
    unfinished: tuple[str, ...]
    aside: tuple[str, ...]
    """Names of those that an earlier resume set aside."""


Verify = Callable[[Path, tuple[FileEntry, ...]], list[str]]


def list_checkpoints(checkpoints: Path) -> Listing:
    """Reads the manifests. The file `latest` is not consulted: it can be missing or stale."""
    candidates: list[tuple[Path, Manifest | str]] = []
    for path in newest_first(checkpoints):
        try:
            candidates.append((path, read_manifest(path)))
        except CheckpointError as error:
            candidates.append((path, error.problems[0].what))
    return Listing(tuple(candidates), tuple(path.name for path in partials(checkpoints)), tuple(path.name for path in broken(checkpoints)))


def newest_whole(listing: Listing, verify: Verify = damage) -> Search:
    """The newest checkpoint of the listing whose every file has the size and digest of its manifest. `verify` may share the digests out over ranks."""
    skipped = [f"{name}: the save did not finish" for name in listing.unfinished]
    for path, manifest in listing.candidates:
        wrong = [manifest] if isinstance(manifest, str) else verify(path, manifest.files)
        if isinstance(manifest, Manifest) and not wrong:
            return Search(Found(path, manifest), tuple(skipped))
        skipped.append(f"{path.name}: {'; '.join(wrong)}")
    aside = tuple(f"{name}: set aside by an earlier resume" for name in listing.aside)
    return Search(None, tuple(skipped), (*skipped, *aside) if listing.candidates or aside else ())


def find_newest_whole(checkpoints: Path, verify: Verify = damage) -> Search:
    """`newest_whole` of what lies in the folder."""
    return newest_whole(list_checkpoints(checkpoints), verify)
