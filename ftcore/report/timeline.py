"""A chart of what happened when: a lane for each kind, spans and points in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftcore.report.blocks import Chart
from ftcore.report.numbers import time_tick
from ftcore.report.page import plain
from ftcore.report.svg import colour, draw_svg, is_wide

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTHS = {"broad": 1180, "narrow": 380}
LANE = 30
MOST_NAMED = 12
"""Spans with their names in them; more would not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From one second to another."""

    start: float
    end: float
    colour: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A row of the chart."""

    name: str
    spans: tuple[Span, ...] = ()
    points: tuple[float, ...] = ()
    colour: str = "series-1"
    """Of the points."""


def timeline(title: str, lanes: Sequence[Lane], *, note: str = "") -> Chart:
    """Seconds from the left; the lanes from above."""
    end = max((place for lane in lanes for place in (*lane.points, *(span.end for span in lane.spans))), default=0.0)
    end = end if end > 0 else 1.0
    described = "; ".join(f"{lane.name}: {len(lane.spans) or len(lane.points)}" for lane in lanes)

    def draw(axes: Axes) -> None:
        for row, lane in enumerate(lanes):
            for span in lane.spans:
                long = max(span.end - span.start, end / 400)
                axes.barh(row, long, 0.55, left=span.start, color=colour(span.colour), edgecolor=colour("paper"), linewidth=0.8)
                if len(lane.spans) <= MOST_NAMED and span.end - span.start > end / 25:
                    axes.text((span.start + span.end) / 2, row, plain(span.name), color=colour("paper"), ha="center", va="center_baseline")
            if lane.points:
                axes.plot(lane.points, [row] * len(lane.points), linestyle="", marker="o", markersize=5.5, color=colour(lane.colour), clip_on=False)
        _finish(axes, [lane.name for lane in lanes], end)

    height = LANE * len(lanes) + 34
    broad, narrow = (draw_svg(title, described, (width, height), draw, shown=shown) for shown, width in WIDTHS.items())
    return Chart(title=title, svg=broad, narrow=narrow, note=note)


def _finish(axes: Axes, names: Sequence[str], end: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_yticks(range(len(names)), [plain(name) for name in names])
    axes.tick_params(axis="y", labelcolor=colour("ink"))
    axes.set(xlim=(-end * 0.006, end * 1.006), ylim=(len(names) - 0.45, -0.55))
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color=colour("line"), linewidth=0.8)
    locator = MaxNLocator(nbins=10 if is_wide(axes) else 4, steps=[1, 2, 3, 5, 6, 10])
    unit = next((size for size in (86400, 3600, 60) if end >= 2 * size), 1)
    axes.set_xticks([place * unit for place in locator.tick_values(0, end / unit) if 0 <= place * unit <= end * 1.006])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: time_tick(value)))
