"""Colours where the output shows them, and marks in brackets where it does not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

from ftcore.spec.errors import visible

RESET, BOLD, FAINT, GREEN, YELLOW, RED = "\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[31m"
OPEN, CLOSE = "[[", "]]"
"""Around what is supervised, without colours."""


class Paint:
    """Marks text; what a terminal would obey in it is written out first."""

    def __init__(self, *, coloured: bool) -> None:
        self.coloured = coloured

    def title(self, text: str) -> str:
        """A heading."""
        return self._in(BOLD, visible(text))

    def faint(self, text: str) -> str:
        """What matters less."""
        return self._in(FAINT, visible(text))

    def warning(self, text: str) -> str:
        """What a user should look at."""
        return self._in(YELLOW, visible(text))

    def wrong(self, text: str) -> str:
        """What stops a training."""
        return self._in(RED, visible(text))

    def plain(self, text: str) -> str:
        """Text without a mark."""
        return visible(text)

    def learned(self, text: str, weight: float = 1.0) -> str:
        """A stretch that is supervised; a weight other than 1 stands behind it."""
        shown = visible(text)
        behind = "" if weight == 1 else f"×{weight:g}"
        return self._in(GREEN, shown) + behind if self.coloured else f"{OPEN}{shown}{CLOSE}{behind}"

    def _in(self, colour: str, text: str) -> str:
        # Colours end with their line, so that a pager may begin anywhere.
        return "\n".join(f"{colour}{line}{RESET}" if line else line for line in text.split("\n")) if self.coloured else text


def takes_colours(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the stream is a terminal whose user wants colours (https://no-color.org)."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
