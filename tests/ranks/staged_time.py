"""A clock that the ranks of a test share and that moves when the test says so: how late a rank comes is then no matter of how busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ftcore.attribution.clocks import HostClock

LIMIT_S = 60.0
"""For what another rank does in milliseconds."""
START_S = 1000.0


class StagedTime:
    """One rank's view. Rank 1 moves the time on, once rank 0 has come to where it is to wait."""

    def __init__(self, file: Path) -> None:
        """`file` holds the time and how often rank 0 has come; all ranks name the same one, which `lay_out` has made."""
        self._shared = np.memmap(file, dtype=np.float64, mode="r+", shape=(2,))
        self._expected, self._comes_with_next_read = 0, False

    @staticmethod
    def lay_out(file: Path) -> None:
        """To be called once, before any rank looks at it."""
        np.array([START_S, 0.0]).tofile(file)

    def clock(self, shift: float) -> HostClock:
        """This rank's clock, so many seconds ahead of the time."""
        return _StagedClock(lambda: self._read() + shift)

    def comes(self) -> None:
        """Rank 0 is where it waits."""
        self._shared[1] += 1

    def comes_with_next_read(self) -> None:
        """Rank 0 is where it waits when it next looks at the clock: on its way into a collective."""
        self._comes_with_next_read = True

    def move(self, seconds: float) -> None:
        """By rank 1: waits until rank 0 has come once more, and moves the time on."""
        self._expected += 1
        self._wait(lambda: self._shared[1] >= self._expected)
        self._shared[0] += seconds

    def move_on(self, seconds: float) -> None:
        """By rank 1, where nobody needs to come."""
        self._shared[0] += seconds

    def wait_for(self, seconds: float) -> None:
        """By rank 0: works until that time."""
        self._wait(lambda: self._shared[0] >= seconds)

    @property
    def now(self) -> float:
        """The time."""
        return float(self._shared[0])

    def _read(self) -> float:
        now = self.now
        if self._comes_with_next_read:
            self._comes_with_next_read = False
            self.comes()
        return now

    def _wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, "the other rank did not come"
            time.sleep(0.001)


class _StagedClock(HostClock):
    """Nothing is held up in time that does not move by itself."""

    def mark(self) -> tuple[float, bytes]:
        return self._read(), b""
