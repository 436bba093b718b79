"""Time for tests of programs that have to be done within so many seconds: it stands still while the machine has no processor for them, or stands itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

STEP_S = 0.02
MOST_S = 0.2
"""Longer steps are those of a machine that stood still, or of one that had no time for the thread which counts."""
PRESSURE = Path("/proc/pressure/cpu")


class OwnTime:
    """Seconds since the block began in which nothing on this machine waited for a processor; all of them where Linux doesn't count that.

    On a quiet machine they are those of a watch, so that a promise of ten seconds is held to ten; on one with other things to do they are fewer.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> OwnTime:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        """So far, or until the block ended."""
        return self._seconds

    def _count(self) -> None:
        now, waited = time.monotonic(), waited_for_processors()
        while not self._is_over.wait(STEP_S):
            before, waited_before = now, waited
            now, waited = time.monotonic(), waited_for_processors()
            self._seconds += min(max(0.0, now - before - (waited - waited_before)), MOST_S)


def waited_for_processors() -> float:
    """Seconds so far in which at least one process of this machine could have run and got no processor (Linux, Documentation/accounting/psi.rst)."""
    try:
        some = PRESSURE.read_text().splitlines()[0]
    except OSError:
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6
