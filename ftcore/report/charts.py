"""Charts for pages: lines, stacked bars, histograms and bars. Legends stand outside of the drawings, never over the data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftcore.report.blocks import Chart, Key
from ftcore.report.curves import cap_of
from ftcore.report.numbers import short_number
from ftcore.report.page import plain
from ftcore.report.svg import FONT_SIZE, Draw, colour, draw_svg, is_wide

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (380, 230)
"""Of a chart that stands beside others, and of the narrow variant of a wide one."""
WIDE_SIZE = (1180, 300)
MOST_EDGED = 80
"""Bars with a thin line around each; more are too narrow for it."""
MOST_LABELS = 16
"""Under bars; of more only every so manieth is shown."""


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
    """With `high`: a band, the smallest and largest value around each x."""
    high: Sequence[float] = ()


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


def line_chart(title: str, series: Sequence[Series], *, x: Axis, y: Axis, marks: Sequence[Mark] = (), wide: bool = False, note: str = "") -> Chart:
    """Lines over a common x axis; series and marks of one name share an entry of the legend."""
    limits, told = _y_range(series, y)

    def draw(axes: Axes) -> None:
        for each in series:
            _draw_series(axes, each)
        for mark in marks:
            axes.axvline(mark.x, color=colour(mark.colour), linewidth=1, linestyle=(0, (2, 2)))
        if y.is_log:
            axes.set_yscale("log")
        if limits is not None:
            axes.set_ylim(*limits)
        _mark_left_out(axes, series, limits if told else None)
        _widen_single(axes, series)
        _name_axes(axes, x, y)

    legend = [Key(name=each.name, colour=each.colour, shape=_KEY_SHAPES[each.style]) for each in series if each.name]
    legend += [Key(name=f"{each.name} (from smallest to largest)", colour=each.colour, shape="band") for each in series if len(each.low) and each.name]
    legend += _dashes((*marks, *y.limits))
    notes = " ".join(part for part in (note, told) if part)
    described = "; ".join(_describe(each, y) for each in series)
    return _chart(title, described, draw, tuple(dict.fromkeys(legend)), notes, wide=wide)


def stacked_bars(title: str, labels: Sequence[str], layers: Sequence[Layer], *, y: Axis, x: Axis | None = None, wide: bool = False, note: str = "") -> Chart:
    """A bar a label, made of the layers' values from below."""
    places = list(range(len(labels)))

    def draw(axes: Axes) -> None:
        _stack(axes, places, [0.82] * len(places), layers)
        every = max(1, math.ceil(len(labels) / MOST_LABELS))
        axes.set_xticks(places[::every], [_fitting(label, 12) for label in labels[::every]])
        axes.set_xlim(-0.6, max(len(labels), 1) - 0.4)
        _name_axes(axes, x or Axis(), y, keep_x=True)

    totals = [math.fsum(layer.values[place] for layer in layers) for place in places]
    described = f"{len(labels)} bars" + (f", from {y.show(min(totals))} to {y.show(max(totals))}" if totals else "")
    return _chart(title, described, draw, _boxes(layers) + _dashes(y.limits), note, wide=wide)


def histogram(title: str, edges: Sequence[float], layers: Sequence[Layer], *, x: Axis, y: Axis, wide: bool = False, note: str = "") -> Chart:
    """Counts between neighbouring `edges`, one more than each layer has values; also for what is stacked over time."""
    starts = list(edges[:-1])
    widths = [end - start for start, end in itertools.pairwise(edges)]

    def draw(axes: Axes) -> None:
        _stack(axes, [start + width / 2 for start, width in zip(starts, widths, strict=True)], widths, layers)
        if len(edges) > 1:
            axes.set_xlim(edges[0], edges[-1])
        _name_axes(axes, x, y)

    totals = [math.fsum(layer.values[place] for layer in layers) for place in range(len(starts))]
    described = f"{len(starts)} bins" + (f" from {x.show(edges[0])} to {x.show(edges[-1])}, the highest {y.show(max(totals))}" if totals else "")
    return _chart(title, described, draw, _boxes(layers) if len(layers) > 1 else (), note, wide=wide)


def bars(
    title: str,
    labels: Sequence[str],
    groups: Sequence[Layer],
    *,
    show: Callable[[float], str] = short_number,
    colours: Sequence[str] = (),
    note: str = "",
) -> Chart:
    """Lying bars with their values at their ends: for each label one of each group, its name above them.

    `colours`: one a label, in place of the groups' own.
    """
    thick, gap, named = 13.0, 4.0, 15.0
    row = named + len(groups) * (thick + gap) + 7
    height = round(row * len(labels) + 12)
    highest = max((value for group in groups for value in group.values if math.isfinite(value)), default=0.0) or 1.0

    def draw(axes: Axes) -> None:
        for number, label in enumerate(labels):
            top = number * row
            axes.text(0, top + named - 5, _fitting(label, 56), color=colour("ink"), va="baseline")
            for place, group in enumerate(groups):
                value, middle = group.values[number], top + named + place * (thick + gap) + thick / 2
                if math.isfinite(value):
                    axes.barh(middle, value, thick, color=colour(colours[number] if colours else group.colour))
                axes.text(max(value if math.isfinite(value) else 0.0, 0.0) + highest * 0.015, middle, show(value), color=colour("soft"), va="center_baseline")
        axes.set(xlim=(0, highest * 1.22), ylim=(row * max(len(labels), 1), 0))
        axes.axis("off")

    described = "; ".join(f"{label}: " + ", ".join(f"{group.name} {show(group.values[n])}" for group in groups) for n, label in enumerate(labels))
    legend = _boxes(groups) if len(groups) > 1 else ()
    return Chart(title=title, svg=draw_svg(title, described, (SIZE[0], height), draw), legend=legend, note=note)


_STEPS = [1, 2, 2.5, 5, 10]
_KEY_SHAPES = {"line": "line", "faint": "faint", "dashed": "dashed", "dots": "dot"}


def _chart(title: str, described: str, draw: Draw, legend: tuple[Key, ...], note: str, *, wide: bool) -> Chart:
    if not wide:
        return Chart(title=title, svg=draw_svg(title, described, SIZE, draw), legend=legend, note=note)
    broad, narrow = (draw_svg(title, described, size, draw, shown=shown) for size, shown in ((WIDE_SIZE, "broad"), (SIZE, "narrow")))
    return Chart(title=title, svg=broad, narrow=narrow, legend=legend, note=note)


def _boxes(layers: Sequence[Layer]) -> tuple[Key, ...]:
    return tuple(Key(name=layer.name, colour=layer.colour, shape="box") for layer in layers)


def _dashes(marks: Sequence[Mark]) -> tuple[Key, ...]:
    return tuple(dict.fromkeys(Key(name=each.name, colour=each.colour, shape="dashed") for each in marks if each.name))


def _draw_series(axes: Axes, each: Series) -> None:
    if len(each.low):
        axes.fill_between(each.x, each.low, each.high, color=colour(each.colour), alpha=0.28, linewidth=0)
    if each.style == "dots":
        axes.plot(each.x, each.y, color=colour(each.colour), linewidth=1.4, marker="o", markersize=4.5)
    else:
        is_alone = len(each.x) == 1
        width, alpha = (1.0, 0.4) if each.style == "faint" else (1.4, 1.0) if each.style == "dashed" else (1.9, 1.0)
        dashes = (0, (5, 3)) if each.style == "dashed" else "solid"
        axes.plot(each.x, each.y, color=colour(each.colour), linewidth=width, alpha=alpha, linestyle=dashes, marker="o" if is_alone else "", markersize=5)


def _stack(axes: Axes, places: Sequence[float], widths: Sequence[float], layers: Sequence[Layer]) -> None:
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


def _name_axes(axes: Axes, x: Axis, y: Axis, *, keep_x: bool = False) -> None:
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
    locator = MaxNLocator(nbins=most, steps=_STEPS, integer=axis.is_whole)
    return [float(place) * unit for place in locator.tick_values(low / unit, high / unit)]


def _fitting(text: str, most: int) -> str:
    shown = plain(text).replace("\n", " ").replace("\t", " ")
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _y_range(series: Sequence[Series], y: Axis) -> tuple[tuple[float, float] | None, str]:
    """(bottom, top) where the drawing can't be left to choose them, and what is told of values above the top."""
    values = [value for each in series for value in (each.high if len(each.high) else each.y) if math.isfinite(value)]
    cap = cap_of(values) if y.caps and not y.is_log else math.inf
    above = [value for value in values if value > cap]
    if not above:
        return None, ""
    drawn = [value for each in series for value in (*each.y, *each.low, *each.high) if value <= cap]
    low, high = min(drawn), max(drawn)
    told = f"{len(above):,} {'value lies' if len(above) == 1 else 'values lie'} above the drawing, up to {y.show(max(above))}: see ▲."
    return (0.0 if y.from_zero else low - 0.04 * (high - low), high + 0.12 * (high - low)), told


def _mark_left_out(axes: Axes, series: Sequence[Series], limits: tuple[float, float] | None) -> None:
    if limits is None:
        return
    for each in series:
        above = [x for x, y in zip(each.x, each.high if len(each.high) else each.y, strict=True) if math.isfinite(y) and y > limits[1]]
        axes.plot(above, [limits[1]] * len(above), linestyle="", marker="^", markersize=6, color=colour(each.colour), clip_on=False)


def _widen_single(axes: Axes, series: Sequence[Series]) -> None:
    """A lone point stands in the middle."""
    places = {x for each in series for x in each.x}
    if len(places) == 1:
        axes.set_xlim(min(places) - 0.5, max(places) + 0.5)


def _describe(each: Series, y: Axis) -> str:
    values = [value for value in each.y if math.isfinite(value)]
    name = each.name or "values"
    if not values:
        return f"{name}: none"
    return f"{name}: from {y.show(values[0])} to {y.show(values[-1])}, smallest {y.show(min(values))}, largest {y.show(max(values))}"
