"""The caches of prepared samples: which there are, and clearing away those that nobody needs. `python -m ftcore.data.collect CACHE`.

A cache that a run reads, or a preparation makes, is locked and left alone. Nothing here needs torch.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ftcore.data.cache import SampleSet
from ftcore.data.digests import memory_path, remembered_file
from ftcore.data.lock import if_free
from ftcore.data.prepared import load_prepared
from ftcore.spec.errors import CheckpointError, DataError
from ftcore.spec.lengths import read_lengths
from ftcore.spec.run_dir import RunDir

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """One cache of prepared samples with the files beside it."""

    key: str
    """First part of the names of its files."""
    bytes: int
    """On disk, of all its files."""
    used: float
    """When it was last made or asked for, in seconds since 1970."""
    made_of: str = ""
    """What a spec named that it was last used for: a file, a folder, ...; empty when that isn't known."""
    format: str = ""
    rows: int = 0
    samples: int = 0
    tokens: int = 0
    damaged: str = ""
    """Why it can't be used; empty when it can."""
    state: str = "kept"
    """kept, deleted, or in use: a run reads it, or a preparation makes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection did, or would do."""

    entries: tuple[CacheEntry, ...]
    """All caches, the one used longest ago first."""
    dry_run: bool
    """Whether nothing was deleted, but would have been."""
    freed_bytes: int
    notes_deleted: int
    """Remembered digests and counts of lengths that went with their data."""

    def to_json(self) -> str:
        """Indented JSON with a final newline."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which caches are to go."""

    older_than_days: float | None = None
    """Those not used for so long; None: whatever their age."""
    kept: frozenset[str] = frozenset()
    """Keys of caches that stay (`used_by`)."""
    nothing: bool = False
    """Only list them."""

    def takes(self, entry: CacheEntry, now: float) -> bool:
        """Whether an entry is to go, unless it is in use."""
        is_old = self.older_than_days is None or now - entry.used > self.older_than_days * DAY_S
        return not self.nothing and is_old and entry.key not in self.kept


def used_by(runs: Iterable[Path]) -> frozenset[str]:
    """Keys of the caches that runs were prepared with. Raises CheckpointError for a folder that is no prepared run."""
    found: set[str] = set()
    for run in runs:
        prepared = load_prepared(RunDir(run).prepared)
        found |= {Path(each.arrow).stem for each in (*prepared.train.values(), *prepared.eval.values())}
    return frozenset(found)


def collect(cache_dir: Path, choice: Choice, *, dry_run: bool = False) -> Collected:
    """Deletes the caches that `choice` takes and that are not in use, with what is remembered of them; `dry_run`: only says which.

    Files of an unfinished preparation, whose process is gone, are a cache that can't be used.
    """
    folder = cache_dir / "data"
    made_of = _made_of(cache_dir)
    now = time.time()
    entries: list[CacheEntry] = []
    for key, files in _grouped(folder).items():
        entry = _entry(key, files, made_of.get(key, ""))
        with contextlib.ExitStack() as locks:
            free = all(locks.enter_context(if_free(file)) for file in files if file.suffix in (".lock", ".arrow"))
            if not free:
                entry = dataclasses.replace(entry, state="in use")
            elif choice.takes(entry, now):
                entry = dataclasses.replace(entry, state="deleted")
                _delete(() if dry_run else files)
        entries.append(entry)
    gone = {entry.key for entry in entries if entry.state == "deleted"}
    notes = _forget(cache_dir, gone, dry_run=dry_run) if not choice.nothing else 0
    freed = sum(entry.bytes for entry in entries if entry.state == "deleted")
    return Collected(entries=tuple(sorted(entries, key=lambda entry: entry.used)), dry_run=dry_run, freed_bytes=freed, notes_deleted=notes)


def _grouped(folder: Path) -> dict[str, list[Path]]:
    """Key -> its files, those of broken preparations among them."""
    groups: dict[str, list[Path]] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.is_file():
            groups.setdefault(file.name.lstrip(".").split(".", 1)[0], []).append(file)
    return groups


def _entry(key: str, files: list[Path], made_of: str) -> CacheEntry:
    states = [state for file in files if (state := _state(file)) is not None]
    size, used = sum(size for size, _ in states), max((changed for _, changed in states), default=0.0)
    arrow = next((file for file in files if file.name == f"{key}.arrow"), None)
    if arrow is None:
        return CacheEntry(key=key, bytes=size, used=used, made_of=made_of, damaged="a preparation that did not end")
    try:
        samples = SampleSet.open(arrow)
    except DataError as error:
        return CacheEntry(key=key, bytes=size, used=used, made_of=made_of, damaged=error.problems[0].what)
    counts = samples.counts
    return CacheEntry(key=key, bytes=size, used=used, made_of=made_of, format=counts.format, rows=counts.rows, samples=len(samples), tokens=counts.tokens)


def _state(file: Path) -> tuple[int, float] | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime


def _delete(files: Iterable[Path]) -> None:
    """The lock last: whoever waits for it finds nothing then, and makes its own."""
    for file in sorted(files, key=lambda file: file.suffix == ".lock"):
        file.unlink(missing_ok=True)


def _made_of(cache_dir: Path) -> dict[str, str]:
    """Key of a cache -> what the spec named that it was used for last."""
    found: dict[str, str] = {}
    for path in sorted((cache_dir / "lengths").glob("*.json")):
        stored = read_lengths(path)
        if stored is not None:
            found[Path(stored.arrow).stem] = stored.file
    return found


def _forget(cache_dir: Path, gone: set[str], *, dry_run: bool) -> int:
    """Removes the counts of caches that are gone, and digests of files that are; how many."""
    arrows = {memory_path(cache_dir / "data" / f"{key}{suffix}", cache_dir) for key in gone for suffix in (".arrow", ".outcomes.jsonl")}
    lost: list[Path] = []
    for path in (cache_dir / "lengths").glob("*.json"):
        stored = read_lengths(path)
        if stored is None or Path(stored.arrow).stem in gone or not Path(stored.arrow).exists():
            lost.append(path)
    lost += [path for path in (cache_dir / "digests").glob("*.json") if path in arrows or not Path(remembered_file(path)).is_file()]
    for path in () if dry_run else lost:
        path.unlink(missing_ok=True)
    return len(lost)


def main(arguments: list[str]) -> None:
    """Prints what `collect` did as JSON. Raises CheckpointError as `used_by`."""
    parser = argparse.ArgumentParser(prog="python -m ftcore.data.collect")
    parser.add_argument("cache", type=Path)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--older-than", type=float, metavar="DAYS", help="delete those not used for so long")
    which.add_argument("--all", action="store_true", help="delete all")
    parser.add_argument("--keep", type=Path, action="append", default=[], metavar="RUN", help="but not those of this run")
    parser.add_argument("--dry-run", action="store_true", help="delete nothing, and say what would be")
    given = parser.parse_args(arguments)
    choice = Choice(older_than_days=given.older_than, kept=used_by(given.keep), nothing=given.older_than is None and not given.all)
    sys.stdout.write(collect(given.cache, choice, dry_run=given.dry_run).to_json())


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except CheckpointError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_status)
