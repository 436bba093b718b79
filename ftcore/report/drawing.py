"""What charts are made of, and how their parts are drawn into matplotlib's axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftcore.report.curves import cap_of
from ftcore.report.numbers import short_number
from ftcore.report.page import plain
from ftcore.report.svg import FONT_SIZE, colour, is_wide

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_EDGED = 80
"""Bars with a thin line around each; more are too narrow for it."""
_STEPS = [1, 2, 2.5, 5, 10]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line. A value that is not finite leaves a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = "series-1"
    style: str = "line"
    """line, faint, dashed or dots."""
    low: Sequence[float] = ()
    """With `high`: a band around each x."""
    high: Sequence[float] = ()
    band: str = "from smallest to largest"
    """What the band reaches over, for the legend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One part of each bar, on top of the part before it."""

    name: str
    values: Sequence[float]
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A line at a value of an axis, such as a restart or a limit."""

    x: float
    name: str
    colour: str = "soft"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What an axis measures."""

    name: str = ""
    show: Callable[[float], str] = short_number
    from_zero: bool = False
    is_whole: bool = False
    """Only whole numbers are ticked."""
    units: tuple[float, ...] = ()
    """Ticks are round in the largest of them that the axis reaches twice; empty: in ones."""
    is_log: bool = False
    """For positive values only."""
    caps: bool = False
    """A few values far above the rest are left out of the drawing and told in its note."""
    limits: tuple[Mark, ...] = ()
    """Lines across, such as what may not be passed."""


def draw_series(axes: Axes, each: Series) -> None:
    """A line with its band; a lone point as a dot."""
    if len(each.low):
        axes.fill_between(each.x, each.low, each.high, color=colour(each.colour), alpha=0.28, linewidth=0)
    if each.style == "dots":
        axes.plot(each.x, each.y, color=colour(each.colour), linewidth=1.4, marker="o", markersize=4.5)
    else:
        is_alone = len(each.x) == 1
        width, alpha = (1.0, 0.4) if each.style == "faint" else (1.4, 1.0) if each.style == "dashed" else (1.9, 1.0)
        dashes = (0, (5, 3)) if each.style == "dashed" else "solid"
        axes.plot(each.x, each.y, color=colour(each.colour), linewidth=width, alpha=alpha, linestyle=dashes, marker="o" if is_alone else "", markersize=5)


def stack(axes: Axes, places: Sequence[float], widths: Sequence[float], layers: Sequence[Layer]) -> None:
    """Each layer as one path of all its bars: a hundredth of the elements, and of the time, that a bar each takes."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    below = [0.0] * len(places)
    line = 0.5 if len(places) <= MOST_EDGED else 0.0
    for layer in layers:
        above = [low + value for low, value in zip(below, layer.values, strict=True)]
        bars_of = zip(places, widths, below, above, strict=True)
        corners = [_corners(middle, width, low, high) for middle, width, low, high in bars_of if high > low]
        if corners:
            path = Path.make_compound_path(*(Path(each, closed=True) for each in corners))
            axes.add_patch(PathPatch(path, facecolor=colour(layer.colour), edgecolor=colour("paper"), linewidth=line))
        below = above
    axes.autoscale_view()


def _corners(middle: float, width: float, low: float, high: float) -> list[tuple[float, float]]:
    left, right = middle - width / 2, middle + width / 2
    return [(left, low), (right, low), (right, high), (left, high), (left, low)]


def name_axes(axes: Axes, x: Axis, y: Axis, *, keep_x: bool = False) -> None:
    """Names, limits and ticks of both axes, once the data are drawn; with `keep_x` the ticks below stay."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    if not keep_x:
        low, high = axes.get_xlim()
        axes.set_xticks([place for place in tick_places(low, high, x, 12 if is_wide(axes) else 6) if low <= place <= high])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: x.show(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: y.show(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    for limit in y.limits:
        axes.axhline(limit.x, color=colour(limit.colour), linewidth=1.2, linestyle=(0, (5, 3)))
    if y.from_zero and not y.is_log:
        axes.set_ylim(bottom=0)
    if not y.is_log:
        low, high = axes.get_ylim()
        axes.set_yticks([place for place in tick_places(low, high, y, 5) if low <= place <= high])
    if x.name:
        axes.set_xlabel(plain(x.name), color=colour("soft"), loc="right", labelpad=3)
    if y.name:
        axes.figure.suptitle(plain(y.name), color=colour("soft"), x=0.0, ha="left", fontsize=FONT_SIZE)


def tick_places(low: float, high: float, axis: Axis, most: int) -> list[float]:
    """Where an axis from `low` to `high` is ticked."""
    from matplotlib.ticker import MaxNLocator

    unit = max((each for each in axis.units if high >= 2 * each), default=1.0)
    locator = MaxNLocator(nbins=most, steps=_STEPS, integer=axis.is_whole, min_n_ticks=1 if axis.is_whole else 2)
    return [float(place) * unit for place in locator.tick_values(low / unit, high / unit)]


def fitting(text: str, most: int) -> str:
    """`text` on one line, cut to so many characters."""
    shown = plain(text).replace("\n", " ").replace("\t", " ")
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def short_labels(labels: Sequence[str], most: int = 12) -> list[str]:
    """The labels, each cut to so many characters: at its end, or at its beginning where that keeps more of them apart, as of lora-lr1e-4 and lora-lr2e-4."""
    ends = [fitting(label, most) for label in labels]
    starts = [fitting(label[::-1], most)[::-1] for label in labels]
    return starts if len(set(starts)) > len(set(ends)) else ends


def y_range(series: Sequence[Series], y: Axis) -> tuple[tuple[float, float] | None, str]:
    """(bottom, top) where the drawing can't be left to choose them, and what is told of values above the top."""
    values = [value for each in series for value in (each.high if len(each.high) else each.y) if math.isfinite(value)]
    cap = cap_of(values) if y.caps and not y.is_log else math.inf
    above = [value for value in values if value > cap]
    if not above:
        return None, ""
    drawn = [value for each in series for value in (*each.y, *each.low, *each.high) if value <= cap]
    low, high = min(drawn), max(drawn)
    told = f"{len(above):,} {'value lies' if len(above) == 1 else 'values lie'} above the drawing, up to {y.show(max(above))}: see ▲."
    # What is told to lie above the drawing must not be seen in it.
    return (0.0 if y.from_zero else low - 0.04 * (high - low), min(cap, high + 0.12 * (high - low))), told


def mark_left_out(axes: Axes, series: Sequence[Series], limits: tuple[float, float] | None) -> None:
    """A mark at the top for each value above it."""
    if limits is None:
        return
    for each in series:
        above = [x for x, y in zip(each.x, each.high if len(each.high) else each.y, strict=True) if math.isfinite(y) and y > limits[1]]
        axes.plot(above, [limits[1]] * len(above), linestyle="", marker="^", markersize=6, color=colour(each.colour), clip_on=False)


def widen_single(axes: Axes, series: Sequence[Series]) -> None:
    """A lone point stands in the middle."""
    places = {x for each in series for x in each.x}
    if len(places) == 1:
        axes.set_xlim(min(places) - 0.5, max(places) + 0.5)
