"""`ftlaunch logs RUN`: the logs of all ranks as one text of whole lines, also while they grow and across new attempts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.errors import ClusterError, SpecError
from ftcore.spec.resolved import load_resolved
from ftcore.spec.run_dir import RunDir
from launcher.inspect.events import holder
from launcher.run_folder import next_attempt
from launcher.submission.record import is_submitted, read_submission
from launcher.submission.slurm import ask_jobs

POLL_S = 0.2
ASK_S = 15.0
"""Between two questions to the scheduler."""
_CHUNK = 1 << 16
LONGEST_LINE = 1 << 20
"""Bytes after which a line without an end is shown as it is."""
_RANK = re.compile(r"rank_([0-9]+)\.log")
_OTHER = re.compile(r"(?:node_([0-9]+)|prepare|export)\.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which logs."""

    attempt: int | None
    """None: the newest."""
    rank: int | None
    """None: all."""
    everything: bool
    """Also those of preparation, supervisors, export and Slurm."""


class LogFile:
    """A log that is read as it grows, whole lines at a time."""

    def __init__(self, label: str, path: Path) -> None:
        self.label, self.path = label, path
        self._position = 0
        self._rest = b""

    def lines(self, *, to_the_end: bool) -> Iterator[str]:
        """The lines that came since the last call; with `to_the_end` also a last one that has no end yet."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                while chunk := file.read(_CHUNK):
                    self._position += len(chunk)
                    *whole, self._rest = (self._rest + chunk).split(b"\n")
                    yield from (_shown(line) for line in whole)
                    if len(self._rest) > LONGEST_LINE:
                        yield _shown(self._rest)
                        self._rest = b""
        except FileNotFoundError:
            return
        if to_the_end and self._rest:
            yield _shown(self._rest)
            self._rest = b""


def find_logs(run_dir: RunDir, wanted: Wanted, attempt: int) -> list[tuple[str, Path]]:
    """(label, file) of each log of an attempt, by rank; the others after them."""
    folder = run_dir.attempt_logs(attempt)
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    ranks = sorted((int(matched[1]), folder / name) for name in names if (matched := _RANK.fullmatch(name)))
    found = [(f"rank {rank}", path) for rank, path in ranks if wanted.rank in (None, rank)]
    if wanted.everything:
        found += [(name.removesuffix(".log").replace("_", " "), folder / name) for name in sorted(names) if _OTHER.fullmatch(name)]
        found += [(path.stem.replace("-", " "), path) for path in sorted(folder.parent.glob("slurm-*.out"))]
    return found


def show_logs(run_dir: RunDir, wanted: Wanted, write: Callable[[str], None], *, prefixes: bool | None) -> None:
    """Writes the logs of one attempt as they are now, one file after the other. `prefixes` None: where there is more than one.

    Raises SpecError when there is none.
    """
    attempt = _chosen(run_dir, wanted)
    _check_rank(run_dir, wanted, attempt)
    files = [LogFile(label, path) for label, path in find_logs(run_dir, wanted, attempt)]
    if not files:
        raise SpecError(_absent(run_dir, wanted, attempt), where=str(run_dir.path), fix="see `ftlaunch status RUN`; --all shows what is no rank's")
    named = len(files) > 1 if prefixes is None else prefixes
    for file in files:
        for line in file.lines(to_the_end=True):
            write(f"{file.label} | {line}\n" if named else f"{line}\n")


def follow_logs(run_dir: RunDir, wanted: Wanted, write: Callable[[str], None], *, prefixes: bool | None) -> None:
    """Writes the logs as they grow, and those of each new attempt below a line of its own, until the run has ended and nothing of it is queued.

    `prefixes` None: where more than one log can come. Raises SpecError when the run has no such rank or attempt.
    """
    first = shown_attempt = max(_chosen(run_dir, wanted), 1)
    _check_rank(run_dir, wanted, first)
    named = _can_be_several(run_dir, wanted, first) if prefixes is None else prefixes
    files: dict[Path, _Followed] = {}
    watch = _EndWatch(run_dir)
    while True:
        is_over = watch.is_over()
        # What was written before the end was seen is shown after it.
        last = max(next_attempt(run_dir) - 1, first) if wanted.attempt is None else first
        for attempt in range(first, last + 1):
            for label, path in find_logs(run_dir, wanted, attempt):
                is_attempts = path.parent == run_dir.attempt_logs(attempt)
                files.setdefault(path, _Followed(attempt=attempt, ends_with_attempt=is_attempts, file=LogFile(label, path)))
        for each in files.values():
            for line in each.file.lines(to_the_end=is_over or (each.ends_with_attempt and each.attempt < last)):
                if each.attempt > shown_attempt:
                    shown_attempt = each.attempt
                    write(f"--- attempt {shown_attempt} ---\n")
                write(f"{each.file.label} | {line}\n" if named else f"{line}\n")
        if is_over:
            return
        time.sleep(POLL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Followed:
    """A log that is followed."""

    attempt: int
    """In which it was first seen."""
    ends_with_attempt: bool
    """Whether nothing is written to it once the next attempt has begun; Slurm's log is the job's, over its attempts."""
    file: LogFile


class _EndWatch:
    """Whether nothing of a run runs or waits any more."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._asked_at = -ASK_S
        self._is_queued = is_submitted(run_dir)

    def is_over(self) -> bool:
        """Asks the lock each time, the scheduler now and then."""
        if holder(self._run_dir) is not None:
            return False
        if self._is_queued and time.monotonic() - self._asked_at >= ASK_S:
            self._asked_at = time.monotonic()
            try:
                self._is_queued = any(job.waits or job.runs for job in ask_jobs(read_submission(self._run_dir)))
            except ClusterError:
                # It may still run: the next answer says.
                self._is_queued = True
        return not self._is_queued


def _chosen(run_dir: RunDir, wanted: Wanted) -> int:
    newest = next_attempt(run_dir) - 1
    if wanted.attempt is None:
        return newest
    if not 1 <= wanted.attempt <= newest:
        fix = f"there are attempts 1 to {newest}" if newest else "no launch of it has begun"
        raise SpecError(f"there is no attempt {wanted.attempt}", where="--attempt", fix=fix)
    return wanted.attempt


def _check_rank(run_dir: RunDir, wanted: Wanted, attempt: int) -> None:
    """Raises SpecError when no log of the rank is there and none can come: the run has fewer ranks."""
    if wanted.rank is None or run_dir.rank_log(attempt, wanted.rank).exists() or not run_dir.resolved.is_file():
        return
    count = load_resolved(run_dir.resolved).world_size
    if wanted.rank >= count:
        fix = f"give a rank from 0 to {count - 1}" if count > 1 else "its only rank is 0"
        raise SpecError(f"the run has no rank {wanted.rank}: it has {count} rank{'s' if count > 1 else ''}", where="--rank", fix=fix)


def _can_be_several(run_dir: RunDir, wanted: Wanted, attempt: int) -> bool:
    """Whether more than one log is to be followed: said once, before the first line, so that all lines look alike."""
    if wanted.everything or wanted.rank is not None:
        return wanted.everything
    return load_resolved(run_dir.resolved).world_size > 1 or len(find_logs(run_dir, wanted, attempt)) > 1


def _absent(run_dir: RunDir, wanted: Wanted, attempt: int) -> str:
    if attempt < 1:
        return "no launch of it has begun, so there are no logs"
    return f"attempt {attempt} has no log of " + ("any rank" if wanted.rank is None else f"rank {wanted.rank}")


def _shown(line: bytes) -> str:
    """A line as a terminal would leave it: of a progress bar only its last state, and no bytes that are no text."""
    parts = [part for part in line.decode(errors="replace").split("\r") if part]
    return parts[-1] if parts else ""
