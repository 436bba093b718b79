"""Signals before a run's processes are started, and between its attempts: there is nothing to save, and the launch ends with what it says in its place."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from launcher.failure import RunStoppedError
from launcher.processes import PREEMPTING


@contextlib.contextmanager
def early_stops() -> Iterator[None]:
    """While active, and no step of a run takes signals itself, SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP (unless ignored) raise RunStoppedError."""

    def stop(signum: int, _frame: FrameType | None) -> None:
        # A second one must not end the way out.
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        raise RunStoppedError(signum, "start it again")

    handled = [each for each in (*PREEMPTING, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, stop) for each in handled}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler if handler is not None else signal.SIG_DFL)
