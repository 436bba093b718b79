"""What lies in RUN/checkpoints: listed, read through, or thinned out. `python -m ftcore.shelf RUN ls|verify|prune`.

Tells the launcher as one event, `shelf`. Needs no torch, and no resolved.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ftcore.checkpoint.layout import BROKEN, CURSOR, LATEST, REMOVED, broken, newest_first, partials, read_text, update_of
from ftcore.checkpoint.manifest import Manifest, damage, read_manifest
from ftcore.checkpoint.retention import best_of, rename_for_removal
from ftcore.process import run_main
from ftcore.spec.errors import CheckpointError
from ftcore.spec.events import emit
from ftcore.spec.run_dir import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One folder of RUN/checkpoints."""

    name: str
    state: str
    """whole (as far as was looked), damaged, partial, broken (set aside by a resume) or removed (a deletion that did not end)."""
    wrong: tuple[str, ...] = ()
    """Why it is damaged."""
    update: int | None = None
    epoch: int | None = None
    bytes: int = 0
    """On the disk."""
    world_size: int | None = None
    zero_stage: int | None = None
    time: float = 0.0
    """When it was written, seconds since the epoch."""
    metric: float | None = None
    marks: tuple[str, ...] = ()
    """latest: what a resume would begin with; best: the lowest metric; and what the file `latest` says where that is another one."""


def entries(checkpoints: Path, *, digests: bool) -> list[Entry]:
    """Every checkpoint, newest first, then what saves, resumes and deletions left behind. With `digests` every file is read."""
    found = [_entry(path, digests=digests) for path in newest_first(checkpoints)]
    whole = [entry for entry in found if entry.state == "whole"]
    best = best_of(checkpoints / whole[0].name) if whole else None
    marks = {entry.name: (("latest",) if entry is whole[0] else ()) + (("best",) if best and entry.name == best.name else ()) for entry in whole}
    said = _named_latest(checkpoints)
    if said and (not whole or said != whole[0].name):
        marks[said] = (*marks.get(said, ()), "named latest")
    kept = [Entry(**{**_fields(entry), "marks": marks.get(entry.name, ())}) for entry in found]
    return [*kept, *(_leftover(path) for path in leftovers(checkpoints))]


def leftovers(checkpoints: Path) -> list[Path]:
    """Folders that are no checkpoint: unfinished saves, those set aside, unfinished deletions."""
    return [*partials(checkpoints), *broken(checkpoints), *sorted(checkpoints.glob(f"update_*{REMOVED}"))]


def plan_prune(listed: list[Entry], *, keep: int, with_leftovers: bool) -> list[Entry]:
    """What goes: whole checkpoints beyond the newest `keep` (at least one stays), never the best one; and the leftovers when asked for.

    Damaged ones under a checkpoint's name stay: whether one can be mended is for a person to say.
    """
    whole = [entry for entry in listed if entry.state == "whole"]
    doomed = [entry for entry in whole[max(1, keep) :] if "best" not in entry.marks]
    return doomed + [entry for entry in listed if with_leftovers and entry.state in ("partial", "broken", "removed")]


def remove(checkpoints: Path, doomed: list[Entry]) -> None:
    """Deletes these folders; renamed first, so that a kill never leaves half a checkpoint under a checkpoint's name. Raises OSError."""
    for entry in doomed:
        path = checkpoints / entry.name
        shutil.rmtree(rename_for_removal(path) if entry.state == "whole" else path)


def main(run_dir: RunDir, asked: argparse.Namespace) -> None:
    """Does what was asked and tells it. Raises CheckpointError when a folder can't be removed."""
    checkpoints = run_dir.checkpoints
    # What a prune keeps must really be whole: the sizes are not enough to delete the others.
    listed = entries(checkpoints, digests=asked.verb != "ls")
    gone: list[Entry] = []
    if asked.verb == "prune":
        gone = plan_prune(listed, keep=asked.keep, with_leftovers=asked.leftovers)
        if not asked.dry_run:
            try:
                remove(checkpoints, gone)
            except OSError as error:
                fix = "allow this user to change the folder, then prune again"
                raise CheckpointError(f"can't remove a checkpoint: {error}", where=str(checkpoints), fix=fix) from error
    emit("shelf", entries=[asdict(entry) for entry in listed], gone=[entry.name for entry in gone])


def _entry(path: Path, *, digests: bool) -> Entry:
    try:
        manifest: Manifest | None = read_manifest(path)
        wrong: list[str] = []
    except CheckpointError as error:
        manifest, wrong = None, [error.problems[0].what]
    size, when = _size_and_time(path)
    if manifest is None:
        return Entry(name=path.name, state="damaged", wrong=tuple(wrong), update=update_of(path), bytes=size, time=when)
    for number, file in enumerate(manifest.files):
        if digests:
            emit("progress", stage="verify", done=number, total=len(manifest.files), text=f"{path.name}/{file.path}")
        wrong += damage(path, (file,), digests=digests)
    return Entry(
        name=path.name,
        state="damaged" if wrong else "whole",
        wrong=tuple(wrong),
        update=manifest.update,
        epoch=_epoch(path),
        bytes=size,
        world_size=manifest.world_size,
        zero_stage=manifest.zero_stage,
        time=when,
        metric=manifest.metric,
    )


def _leftover(path: Path) -> Entry:
    size, when = _size_and_time(path)
    state, wrong = next((state, wrong) for ending, state, wrong in _LEFTOVERS if path.name.endswith(ending))
    return Entry(name=path.name, state=state, wrong=(wrong,), bytes=size, time=when)


_LEFTOVERS = (
    (BROKEN, "broken", "set aside by a resume that passed it over"),
    (REMOVED, "removed", "its deletion did not end"),
    ("", "partial", "the save did not finish"),
)
"""Ending of the name, state, and why it is no checkpoint."""


def _fields(entry: Entry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in Entry.__slots__}


def _epoch(checkpoint: Path) -> int | None:
    try:
        return int(json.loads(read_text(checkpoint / CURSOR))["epoch"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _named_latest(checkpoints: Path) -> str:
    try:
        return read_text(checkpoints / LATEST).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _size_and_time(folder: Path) -> tuple[int, float]:
    """Bytes of the files in the folder, and when the newest of them was written; files that vanish meanwhile don't count."""
    size, newest = 0, 0.0
    for path in folder.rglob("*"):
        try:
            status = path.stat()
        except OSError:
            continue
        if path.is_file():
            size, newest = size + status.st_size, max(newest, status.st_mtime)
    return size, newest


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ftcore.shelf")
    parser.add_argument("run", type=Path)
    parser.add_argument("verb", choices=("ls", "verify", "prune"))
    parser.add_argument("--keep", type=int, default=1)
    parser.add_argument("--leftovers", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    run_main(lambda run_dir: main(run_dir, given), RunDir(given.run.resolve()))
