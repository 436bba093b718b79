"""The view on a terminal, drawn anew while the run goes on; without one, plain text."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ftcore.spec.errors import INTERRUPT_STATUS_BASE
from launcher.watching.keyboard import Keyboard, is_foreground
from launcher.watching.polling import Poller
from launcher.watching.screen import FOOTER, Size, render
from launcher.watching.view import View

STEP_S = 0.1
"""Between two looks for a view that the thread has finished."""
PLAIN_WIDTH = 120
"""Where there is no terminal, and COLUMNS does not say otherwise."""

Look = Callable[[], Sequence[View]]


def standard_console() -> Console:
    """Of standard output. Colours as rich decides: none with NO_COLOR, in a pipe, or on a terminal that has none."""
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal() else PLAIN_WIDTH
    height = None
    if sys.stdout.isatty() and os.environ.get("TERM") in ("dumb", "unknown"):
        # Rich takes 80 columns for each of these unless it is told both, and the lines of a narrower one would break.
        width, height = shutil.get_terminal_size()
    return Console(file=sys.stdout, width=width, height=height, highlight=False, emoji=False, markup=False, soft_wrap=False)


def is_live(console: Console) -> bool:
    """Whether the screen can be drawn over: it is one, and not that of whoever has put this into the background."""
    return console.is_terminal and not console.is_dumb_terminal and is_foreground(sys.stdout)


def lines_of(views: Sequence[View], size: Size, footer: str) -> list[Text]:
    """The screen; of several runs each has its share of it."""
    if len(views) == 1:
        return render(views[0], size, footer=footer)
    room = size.height and max(3, (size.height - 1) // len(views))
    lines: list[Text] = []
    for view in views:
        lines += render(view, Size(width=size.width, height=room, ascii_only=size.ascii_only), footer="")
    shown = lines[: max(1, size.height - 1)] if size.height else lines
    return [*shown, *([Text(footer, style="dim")] if footer else [])]


def print_once(console: Console, views: Sequence[View]) -> None:
    """A snapshot that stays."""
    # On a terminal what is printed, and the prompt after it, are seen at once.
    height = max(3, console.height - 2) if is_live(console) else 0
    for line in lines_of(views, Size(width=console.width, height=height, ascii_only=console.options.ascii_only), ""):
        console.print(line, no_wrap=True, crop=True, overflow="ellipsis")


def show_live(console: Console, look: Look, interval_s: float) -> int:
    """Draws until the runs are over or the user leaves; returns the exit status: 0, or that of a signal other than Ctrl-C."""
    keyboard = Keyboard()
    poller: Poller[Sequence[View]] = Poller(look, interval_s, _are_over)
    poller.start()
    views: Sequence[View] | None = None
    with keyboard.listening():
        try:
            while keyboard.left_by is None and not (views is not None and _are_over(views)):
                views = _draw(console, keyboard, poller)
        finally:
            poller.stop()
    if views is not None:
        print_once(console, views)
    return INTERRUPT_STATUS_BASE + keyboard.left_by if keyboard.left_by in (1, 15) else 0


def _draw(console: Console, keyboard: Keyboard, poller: Poller[Sequence[View]]) -> Sequence[View] | None:
    """On the other screen of the terminal, until something ends it."""
    views: Sequence[View] | None = None
    drawn: tuple[Sequence[View] | None, Size] | None = None
    with Live(console=console, screen=True, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False) as live:
        while keyboard.left_by is None and not keyboard.is_suspended:
            views = poller.newest()
            size = Size(width=console.width, height=console.height, ascii_only=console.options.ascii_only)
            if drawn is None or drawn[0] is not views or drawn[1] != size:
                lines = [Text("looking …")] if views is None else lines_of(views, size, FOOTER)
                live.update(Group(*lines), refresh=True)
                drawn = (views, size)
            if views is not None and _are_over(views):
                return views
            keyboard.wait(STEP_S)
    if keyboard.is_suspended:
        keyboard.suspend()
    return views


def show_plain(console: Console, look: Look, interval_s: float) -> None:
    """A snapshot every so often until the runs are over, or have not begun; each is whole."""
    while True:
        views = look()
        print_once(console, views)
        console.file.flush()
        if _are_over(views) or all(view.state in ("new", "queued", "requeued") for view in views):
            return
        console.print()
        time.sleep(interval_s)


def _are_over(views: Sequence[View]) -> bool:
    return all(view.is_over for view in views)
