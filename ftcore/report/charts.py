"""Charts for pages: lines, stacked bars, histograms and bars. Legends stand outside of the drawings, never over the data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ftcore.report.blocks import Chart, Key
from ftcore.report.drawing import (
    Axis,
    Layer,
    Mark,
    Series,
    draw_series,
    fitting,
    mark_left_out,
    name_axes,
    short_labels,
    stack,
    tick_places,
    widen_single,
    y_range,
)
from ftcore.report.numbers import short_number
from ftcore.report.svg import Draw, colour, draw_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Axis", "Layer", "Mark", "Series", "bars", "histogram", "line_chart", "stacked_bars", "tick_places"]

SIZE = (380, 230)
"""Of a chart that stands beside others, and of the narrow variant of a wide one."""
WIDE_SIZE = (1180, 300)
MOST_LABELS = 16
"""Under bars; of more only every so manieth is shown."""


def line_chart(title: str, series: Sequence[Series], *, x: Axis, y: Axis, marks: Sequence[Mark] = (), wide: bool = False, note: str = "") -> Chart:
    """Lines over a common x axis; series and marks of one name share an entry of the legend."""
    limits, told = y_range(series, y)

    def draw(axes: Axes) -> None:
        for each in series:
            draw_series(axes, each)
        for mark in marks:
            axes.axvline(mark.x, color=colour(mark.colour), linewidth=1, linestyle=(0, (2, 2)))
        if y.is_log:
            axes.set_yscale("log")
        if limits is not None:
            axes.set_ylim(*limits)
        mark_left_out(axes, series, limits if told else None)
        widen_single(axes, series)
        name_axes(axes, x, y)

    legend = [Key(name=each.name, colour=each.colour, shape=_KEY_SHAPES[each.style]) for each in series if each.name]
    legend += [Key(name=f"{each.name} ({each.band})", colour=each.colour, shape="band") for each in series if len(each.low) and each.name]
    legend += _dashes((*marks, *y.limits))
    notes = " ".join(part for part in (note, told) if part)
    described = "; ".join(_describe(each, y) for each in series)
    return _chart(title, described, draw, tuple(dict.fromkeys(legend)), notes, wide=wide)


def stacked_bars(title: str, labels: Sequence[str], layers: Sequence[Layer], *, y: Axis, x: Axis | None = None, wide: bool = False, note: str = "") -> Chart:
    """A bar a label, made of the layers' values from below."""
    places = list(range(len(labels)))

    def draw(axes: Axes) -> None:
        stack(axes, places, [0.82] * len(places), layers)
        every = max(1, math.ceil(len(labels) / MOST_LABELS))
        axes.set_xticks(places[::every], short_labels(labels)[::every])
        axes.set_xlim(-0.6, max(len(labels), 1) - 0.4)
        name_axes(axes, x or Axis(), y, keep_x=True)

    totals = [math.fsum(layer.values[place] for layer in layers) for place in places]
    described = f"{len(labels)} bars" + (f", from {y.show(min(totals))} to {y.show(max(totals))}" if totals else "")
    return _chart(title, described, draw, _boxes(layers) + _dashes(y.limits), note, wide=wide)


def histogram(title: str, edges: Sequence[float], layers: Sequence[Layer], *, x: Axis, y: Axis, wide: bool = False, note: str = "") -> Chart:
    """Counts between neighbouring `edges`, one more than each layer has values; also for what is stacked over time."""
    starts = list(edges[:-1])
    widths = [end - start for start, end in itertools.pairwise(edges)]

    def draw(axes: Axes) -> None:
        stack(axes, [start + width / 2 for start, width in zip(starts, widths, strict=True)], widths, layers)
        if len(edges) > 1:
            axes.set_xlim(edges[0], edges[-1])
        name_axes(axes, x, y)

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
            axes.text(0, top + named - 5, fitting(label, 56), color=colour("ink"), va="baseline")
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


def _describe(each: Series, y: Axis) -> str:
    values = [value for value in each.y if math.isfinite(value)]
    name = each.name or "values"
    if not values:
        return f"{name}: none"
    return f"{name}: from {y.show(values[0])} to {y.show(values[-1])}, smallest {y.show(min(values))}, largest {y.show(max(values))}"
