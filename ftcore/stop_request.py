"""Signals that ask a rank to stop, taken by a thread: the main thread may be inside a collective for as long as it likes.

SIGTERM of the parent, which is the supervisor that ends the run, ends the process at once. Any other of the signals asks for a stop,
which is for the ranks to agree on. Standard library only: what is imported later may start threads, which must inherit the blocked signals.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from ftcore.spec.errors import StopSignalError
from ftcore.spec.events import emit_ready

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class StopRequest:
    """Whether this process was asked to stop; asking again changes nothing."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        """What a signal does."""
        self._asked.set()

    def wait(self, seconds: float) -> bool:
        """Whether it was asked to stop, at the latest after so many seconds."""
        return self._asked.wait(seconds)


def hold_signals() -> None:
    """Blocks the signals in this thread and in those that it starts from here on: they wait for `take_signals` to take them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def stop_anywhere() -> None:
    """Each of the signals, one that has waited at once, raises StopSignalError in the main thread: for work that may stop anywhere and tidies up."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, _stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _stop(signum: int, _: object) -> None:
    for each in STOP_SIGNALS:
        # Another one must not break off the tidying up.
        signal.signal(each, signal.SIG_IGN)
    raise StopSignalError(f"stopped by {signal.Signals(signum).name}, as it was asked to")


def take_signals(on_request: Callable[[], None] | None = None) -> StopRequest:
    """Starts the thread, and tells the launcher that this rank is ready. To be called once, in the main thread and after any fork.

    `on_request` runs in the thread at every signal that asks for a stop; None: the request is noted.
    """
    hold_signals()
    request = StopRequest()
    threading.Thread(target=_take, args=(on_request or request.ask,), name="signals", daemon=True).start()
    return request


def _take(on_request: Callable[[], None]) -> None:
    emit_ready()
    while True:
        taken = signal.sigwaitinfo(STOP_SIGNALS)
        if taken.si_signo == signal.SIGTERM and taken.si_pid == os.getppid():
            _die()
        else:
            on_request()


def _die() -> None:
    """Ends the process by SIGTERM, so that its status says so."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    os.kill(os.getpid(), signal.SIGTERM)
