"""The view of a run as lines of a terminal, at most so many of at most so many columns: what matters most keeps its place where there is little room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from launcher.watching.numbers import facts, head, latest, notices, progress
from launcher.watching.panels import LEAST_PLOT, curve_lines, rank_lines
from launcher.watching.view import View

FOOTER = "q or Ctrl-C leaves; the run goes on"
LEAST_WIDTH = 20
_PLAIN = str.maketrans({"…": "~", "·": "-"})
ENDLESS = 60
"""Lines of a snapshot on something that has no end."""
MOST_OF_CURVE, MOST_NOTICES = 9, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of a terminal."""

    width: int
    height: int
    ascii_only: bool = False


def render(view: View, size: Size, *, footer: str = FOOTER) -> list[Text]:
    """The lines from above. Of a terminal of any size; one without an end has height 0."""
    width = max(LEAST_WIDTH, size.width)
    top = [*head(view, width), *progress(view, width, ascii_only=size.ascii_only)]
    numbers, newest = facts(view, width), latest(view, width)
    last = [Text(footer, style="dim")] if footer else []
    room = (size.height or ENDLESS) - len(top) - len(last)
    curve = 1 if view.losses.points and room > 0 else 0
    numbers = numbers[: max(min(2, room - curve), room - curve - len(newest) - 1, 0)]
    newest = newest[: max(0, room - curve - len(numbers) - 1)]
    shares = _shares(view, room - curve - len(numbers) - len(newest))
    curve += shares.curve if curve else 0
    lines = [
        *top,
        *curve_lines(view, width, curve, ascii_only=size.ascii_only),
        *numbers,
        *rank_lines(view, width, shares.ranks, ascii_only=size.ascii_only),
        *newest,
        *notices(view, shares.notices),
    ]
    shown = [*_fitting(lines, width, room + len(top)), *_fitting(last, width, len(last))]
    for line in shown if size.ascii_only else ():
        line.plain = line.plain.translate(_PLAIN)
    return shown


@dataclass(frozen=True, slots=True)
class _Shares:
    """Lines for what takes more where there is more room."""

    ranks: int
    curve: int
    notices: int


def _shares(view: View, left: int) -> _Shares:
    """All ranks where that leaves room for something else, then a plot of the loss, then events."""
    left = max(0, left)
    wanted = len(view.ranks) + 1 if view.ranks else 0
    ranks = wanted if wanted <= left - 2 else min(wanted, max(min(left, 1), left * 2 // 3))
    rest = left - ranks
    curve = min(MOST_OF_CURVE, rest - min(len(view.notices), max(1, rest // 3), rest))
    curve = curve if curve + 1 >= LEAST_PLOT else 0
    return _Shares(ranks, curve, min(len(view.notices), MOST_NOTICES, rest - curve))


def _fitting(lines: Sequence[Text], width: int, most: int) -> list[Text]:
    shown = list(lines[: max(0, most)])
    for line in shown:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return shown
