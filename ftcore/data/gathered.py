"""What the chunks of a set become, gathered as they come: columns on disk, counts, a line for each row that isn't as it was, and mistakes."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from ftcore.data.columns import ColumnFiles
from ftcore.data.problems import SHOWN_PROBLEMS
from ftcore.data.row_work import Tally, Worked
from ftcore.spec.errors import DataError, Problem
from ftcore.spec.events import emit

TOLD_EVERY_S = 0.2


class MistakeLog:
    """Mistakes in rows: the first are kept to be shown, and if there are more, all stand in a file."""

    def __init__(self, path: Path) -> None:
        """`path`: the file to write then."""
        self.path = path
        self.count = 0
        self._shown: list[Problem] = []
        self._file: IO[str] | None = None

    def add(self, problems: Sequence[Problem]) -> None:
        """Notes the mistakes of some rows, in the order of the rows."""
        for problem in problems:
            self.count += 1
            if self.count <= SHOWN_PROBLEMS:
                self._shown.append(problem)
                continue
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("w", encoding="utf-8", errors="backslashreplace")
                self._file.writelines(map(_line, self._shown))
            self._file.write(_line(problem))

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()

    def stop(self, name: str) -> None:
        """Raises DataError when there was a mistake; `name` is what the data set is called."""
        self.close()
        if not self.count:
            return
        hidden = self.count - len(self._shown)
        more = Problem(what=f"and {hidden} more mistakes like these: all {self.count} of them stand in {self.path}", file=name, fix=LEAVE_OUT)
        raise DataError([*self._shown, *([more] if hidden else [])])


LEAVE_OUT = "mend the rows, or leave them out with data.on_bad_row: drop"


def _line(problem: Problem) -> str:
    return str(replace(problem, fix="")).replace("\n", " ") + "\n"


class Gathered:
    """Takes the work on one chunk after the other; a context that frees what it holds on disk."""

    def __init__(self, folder: Path, outcomes: IO[bytes], mistakes: MistakeLog, progress: RowProgress) -> None:
        """`folder`: where the columns grow. `outcomes`: where the lines of single rows go."""
        self.columns = ColumnFiles(folder)
        self.tally = Tally()
        self.mistakes = mistakes
        self.first_bad = ""
        """Why the first bad row is one."""
        self._outcomes = outcomes
        self._digest = hashlib.sha256()
        self._progress = progress
        self._open = contextlib.ExitStack()
        self._open.enter_context(self.columns)
        self._open.callback(mistakes.close)

    def __enter__(self) -> Gathered:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def outcomes_digest(self) -> str:
        """sha256 of the lines so far."""
        return self._digest.hexdigest()

    def add(self, worked: Worked) -> None:
        """Takes a chunk's samples, counts, outcomes and mistakes."""
        self.columns.append(worked.packed)
        self.tally.add(worked.tally)
        # Half of a surrogate pair in a reason becomes the escape that JSON has for it.
        lines = b"".join(line.encode(errors="backslashreplace") + b"\n" for line in worked.outcomes)
        self._outcomes.write(lines)
        self._digest.update(lines)
        self.mistakes.add(worked.problems)
        self.first_bad = self.first_bad or worked.first_bad
        self._progress.tell(self.tally.rows, worked.read)


class RowProgress:
    """Tells how far a preparation is: rows done, rows a second, time left by the bytes that are still to be read."""

    def __init__(self, key: str, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`size`: bytes of the set's files."""
        self._key = key
        self._size = size
        self._clock = clock
        self._began = clock()
        self._told: float | None = None
        self._first: tuple[float, int] | None = None
        """When the first chunk was done, and its rows."""

    def tell(self, rows: int, read: int) -> None:
        """After `rows` rows and `read` bytes; told a few times a second."""
        now = self._clock()
        if self._told is not None and now - self._told < TOLD_EVERY_S:
            return
        self._told = now
        # The rows to come are taken to be as long as those that came.
        total = max(rows, round(rows * self._size / read)) if read else 0
        emit("progress", stage="prepare", done=rows, total=total, text=f"{self._key}: {self._speed(now, rows, total)}")

    def _speed(self, now: float, rows: int, total: int) -> str:
        """Counted from the first chunk on, which waits for the tokenizer to be loaded."""
        if self._first is None or rows == self._first[1]:
            self._first = self._first or (now, rows)
            return "tokenising"
        began, done = self._first
        rate = (rows - done) / max(now - began, 1e-9)
        return f"{rate:,.0f} rows/s" + (f", about {_duration((total - rows) / rate)} left" if total else "")

    def end(self, rows: int) -> None:
        """After the last row."""
        passed = max(self._clock() - self._began, 1e-9)
        emit("progress", stage="prepare", done=rows, total=rows, text=f"{self._key}: {rows:,} rows in {_duration(passed)}, {rows / passed:,.0f} rows/s")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
