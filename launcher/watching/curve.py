"""The course of a number over a run, kept small, and drawn with characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_POINTS = 4096
"""From so many on every second one goes."""
LEVELS = "▁▂▃▄▅▆▇█"
PLAIN_LEVELS = "_.-~=+*#"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Of a braille character: rows from above, columns from the left."""


@dataclass(slots=True)
class Curve:
    """(update, value) in order of the updates; values that are no finite numbers are left out."""

    points: list[tuple[int, float]] = field(default_factory=list)

    def add(self, update: int, value: object) -> None:
        """A value of an update; later updates than this one are forgotten: they will be done again."""
        while self.points and self.points[-1][0] >= update:
            self.points.pop()
        if isinstance(value, int | float) and math.isfinite(value):
            self.points.append((update, float(value)))
        if len(self.points) > MOST_POINTS:
            self.points = [*self.points[:-1:2], self.points[-1]]

    def columns(self, count: int) -> list[float | None]:
        """Means over equal spans of updates, the newest last; None where a span has no value."""
        if not self.points or count <= 0:
            return []
        first, last = self.points[0][0], self.points[-1][0]
        count = min(count, len(self.points))
        sums, numbers = [0.0] * count, [0] * count
        for update, value in self.points:
            place = min(count - 1, (update - first) * count // max(1, last - first))
            sums[place] += value
            numbers[place] += 1
        return [total / number if number else None for total, number in zip(sums, numbers, strict=True)]

    def stretched(self, count: int) -> list[float]:
        """`count` values over the whole span, by straight lines between the points where those are fewer; empty without a point."""
        means = filled(self.columns(count))
        if len(means) < 2:
            return means * count
        found = []
        for place in range(count):
            left, share = divmod(place * (len(means) - 1) / max(1, count - 1), 1)
            start = min(int(left), len(means) - 2)
            found.append(means[start] + (means[start + 1] - means[start]) * (share if int(left) == start else 1.0))
        return found


def filled(columns: Sequence[float | None]) -> list[float]:
    """Gaps take the value before them."""
    found: list[float] = []
    for value in columns:
        if value is not None:
            found.append(value)
        elif found:
            found.append(found[-1])
    return found


def sparkline(columns: Sequence[float | None], *, ascii_only: bool = False) -> str:
    """One character a column; a space where there is no value."""
    levels = PLAIN_LEVELS if ascii_only else LEVELS
    known = [value for value in columns if value is not None]
    if not known:
        return ""
    low, span = min(known), (max(known) - min(known)) or 1.0
    return "".join(" " if value is None else levels[min(len(levels) - 1, int((value - low) / span * len(levels)))] for value in columns)


def plot(curve: Curve, width: int, height: int, *, ascii_only: bool = False) -> list[str]:
    """`height` lines of at most `width` characters; the largest value is at the top. Empty without a value."""
    across, down = (1, 1) if ascii_only else (2, 4)
    values = curve.stretched(width * across)
    if not values or width <= 0 or height <= 0:
        return []
    low, span, rows = min(values), (max(values) - min(values)) or 1.0, height * down
    cells = [[0] * width for _ in range(height)]
    before: int | None = None
    for x, value in enumerate(values):
        y = min(rows - 1, int((max(values) - value) / span * (rows - 1) + 0.5)) if max(values) > low else rows // 2
        # A fall of several rows is a line, not two dots.
        for row in range(min(y, y if before is None else before), max(y, y if before is None else before) + 1):
            cells[row // down][x // across] |= 1 if ascii_only else _DOTS[row % down][x % across]
        before = y
    blank = " " if ascii_only else "\u2800"
    lines = ["".join("*" if ascii_only and cell else blank if not cell else chr(0x2800 + cell) for cell in row) for row in cells]
    return [line.rstrip(blank) for line in lines]
