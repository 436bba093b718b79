"""Keys and signals of whoever watches: one wait for both, and a terminal that is always given back as it was."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Any

LEAVING_KEYS = frozenset(b"qQ\x03\x04")
"""q, and Ctrl-C and Ctrl-D where the terminal hands them on as keys."""
_LEAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NOTICED = (*_LEAVING, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)


class Keyboard:
    """What the user wants, asked for with `wait`. Signals are only noted; nothing else happens at one."""

    def __init__(self) -> None:
        self.left_by: int | None = None
        """The signal that asked to leave; 0: a key. None: nobody asked."""
        self.is_suspended = False
        """Ctrl-Z was pressed."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._before: list[Any] | None = None
        """The terminal's settings, as they were."""
        self._input = sys.stdin.fileno() if is_foreground(sys.stdin) else None

    def wait(self, seconds: float) -> None:
        """Returns after so long, or at once when a key or a signal came."""
        handles = [self._reader, *([self._input] if self._input is not None else [])]
        ready = select.select(handles, [], [], max(0.0, seconds))[0]
        if self._reader in ready:
            for number in os.read(self._reader, 4096):
                self._noted(number)
        if self._input in ready and self._input is not None:
            self._typed(self._input)

    def _noted(self, number: int) -> None:
        if number in _LEAVING and self.left_by is None:
            self.left_by = number
        elif number == signal.SIGTSTP:
            self.is_suspended = True

    def _typed(self, handle: int) -> None:
        try:
            keys = os.read(handle, 4096)
        except OSError:
            keys = b""
        if not keys:
            # The terminal is gone, or its input has ended.
            self._input = None
        elif LEAVING_KEYS & set(keys) and self.left_by is None:
            self.left_by = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Keys come one by one and are not echoed; afterwards terminal and signals are as before."""
        before = {each: signal.signal(each, _note) for each in _NOTICED}
        wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        try:
            with self._raw():
                yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for each, handler in before.items():
                signal.signal(each, handler)
            os.close(self._reader)
            os.close(self._writer)

    @contextlib.contextmanager
    def _raw(self) -> Iterator[None]:
        """Keys one by one while inside; nothing where the input is no terminal."""
        if self._input is None:
            yield
            return
        handle, self._before = self._input, termios.tcgetattr(self._input)
        try:
            tty.setcbreak(handle, termios.TCSANOW)
            yield
        finally:
            # What was typed meanwhile is no command for the shell.
            with contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(handle, termios.TCSAFLUSH, self._before)

    def suspend(self) -> None:
        """Stops this process as Ctrl-Z does, with the terminal as it was; returns when it goes on."""
        self.is_suspended = False
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        settings = None if self._input is None else termios.tcgetattr(self._input)
        try:
            if self._input is not None and self._before is not None:
                termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)
            os.kill(os.getpid(), signal.SIGTSTP)
            # The signal may be delivered a moment later.
            time.sleep(0.01)
        finally:
            signal.signal(signal.SIGTSTP, handler)
            if self._input is not None and settings is not None:
                with contextlib.suppress(termios.error, OSError):
                    termios.tcsetattr(self._input, termios.TCSADRAIN, settings)


def _note(_number: int, _frame: Any) -> None:
    """The wakeup descriptor has the signal's number already."""


def is_foreground(stream: Any) -> bool:
    """Whether a stream is a terminal that this process has for itself."""
    try:
        return bool(stream.isatty()) and os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False
