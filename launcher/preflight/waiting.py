"""A line that says what preflight is waiting for, while it waits; only on a terminal."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import TextIO


@contextlib.contextmanager
def waiting_line(stream: TextIO) -> Iterator[Callable[[str], None]]:
    """A function that shows a text in place of the one before; nothing of it is left at the end. Shows nothing where `stream` is no terminal."""
    is_tty = stream.isatty()

    def show(text: str) -> None:
        if is_tty:
            with contextlib.suppress(OSError):
                stream.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
                stream.flush()

    try:
        yield show
    finally:
        show("")
