"""The view of a run as lines of a terminal, at most so many of at most so many columns: what matters most keeps its place where there is little room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from launcher.watching.numbers import facts, head, latest, notices, progress
from launcher.watching.panels import curve_lines, rank_lines
from launcher.watching.view import View

FOOTER = "q or Ctrl-C leaves; the run goes on"
LEAST_WIDTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of a terminal."""

    width: int
    height: int
    ascii_only: bool = False


def render(view: View, size: Size, *, footer: str = FOOTER) -> list[Text]:
    """The lines from above. Of a terminal of any size; one without an end (height 0) gets all there is."""
    width = max(LEAST_WIDTH, size.width)
    top = [*head(view, width), *progress(view, width, ascii_only=size.ascii_only)]
    numbers, newest = facts(view, width), latest(view, width)
    last = [Text(footer, style="dim")] if footer else []
    room = (size.height or 10_000) - len(top) - len(last)
    wanted_notices = len(view.notices) if size.height else 12
    # The loss has its line first, then the numbers, what was saved and scored, one line of the ranks, and one event.
    curve = 1 if view.losses.points and room > 0 else 0
    numbers = numbers[: max(0, room - curve)]
    newest = newest[: max(0, room - curve - len(numbers) - 1)]
    left = max(0, room - curve - len(numbers) - len(newest))
    ranks = min(left, len(view.ranks) + 3) if view.ranks else 0
    notes = min(wanted_notices, max(0, left - ranks), 12)
    if not notes and left > 2 and view.notices:
        ranks, notes = max(ranks - 1, 0), 1
    curve += min(9, max(0, left - ranks - notes)) if curve else 0
    lines = [
        *top,
        *curve_lines(view, width, curve, ascii_only=size.ascii_only),
        *numbers,
        *rank_lines(view, width, ranks, ascii_only=size.ascii_only),
        *newest,
        *notices(view, notes),
    ]
    return [*_fitting(lines, width, room + len(top)), *_fitting(last, width, len(last))]


def _fitting(lines: Sequence[Text], width: int, most: int) -> list[Text]:
    shown = list(lines[: max(0, most)])
    for line in shown:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return shown
