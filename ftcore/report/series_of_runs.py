"""Curves of several runs in one chart: by update, by tokens and by time."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence

from ftcore.report.blocks import Chart
from ftcore.report.charts import Axis, Layer, Series, bars, line_chart, stacked_bars
from ftcore.report.curves import column, sampled, seconds_of, smoothed, smoothing_span, tokens_of, updates_of, without_peaks
from ftcore.report.learning import UPDATE
from ftcore.report.numbers import TIME_UNITS, count, in_bytes, money, share_tick, short_number, time_tick
from ftcore.report.palette import SERIES, series_colour
from ftcore.report.phase_times import PHASE_NAMES
from ftcore.report.run_view import RunView, currencies_of, peak_bytes
from ftcore.spec.run_record import Line

Place = Callable[[Sequence[Line]], list[float]]

AXES: tuple[tuple[str, Place, Axis], ...] = (
    ("by update", updates_of, UPDATE),
    ("by supervised tokens", tokens_of, Axis(name="supervised tokens")),
    ("by time", seconds_of, Axis(name="in the training loop", show=time_tick, units=TIME_UNITS)),
)
MOST_SETS = 3


def mark_of(number: int) -> str:
    """The colour of the run numbered from 0."""
    return series_colour(number)


def loss_charts(views: Sequence[RunView]) -> Iterator[Chart]:
    """The smoothed training loss of all runs, by each measure."""
    for words, place, axis in AXES:
        series = []
        for number, view in enumerate(views):
            if view.lines:
                y = column(view.lines, "loss")
                is_smoothed = smoothing_span(len(y)) > 0
                curve = sampled(place(view.lines), smoothed(without_peaks(y), column(view.lines, "supervised_tokens")) if is_smoothed else y)
                series.append(Series(name=view.name, x=curve.x, y=curve.y, colour=series_colour(number), style=_style(number)))
        yield line_chart(f"Training loss {words}", series, x=axis, y=Axis(caps=True), note="Smoothed." if words == "by update" else "")


def evaluation_charts(views: Sequence[RunView]) -> Iterator[Chart]:
    """The evaluation loss of the first sets, by each measure."""
    for name in list(dict.fromkeys(name for view in views for name in view.evaluations))[:MOST_SETS]:
        for words, place, axis in AXES:
            series = []
            for number, view in enumerate(views):
                scores = view.evaluations.get(name, [])
                if scores:
                    x = _places([each.update for each in scores], view.lines, place)
                    series.append(Series(name=view.name, x=x, y=[each.loss for each in scores], colour=series_colour(number), style="dots"))
            yield line_chart(f"{name}: loss {words}", series, x=axis, y=Axis())


def _places(updates: Sequence[int], lines: Sequence[Line], place: Place) -> list[float]:
    """Where the end of an update stands on an axis: at the last line up to it, or at the beginning."""
    of_lines, ends = place(lines), [line["update"] for line in lines]
    if place is updates_of:
        return [float(update) for update in updates]
    found = [bisect.bisect_right(ends, update) for update in updates]
    return [of_lines[after - 1] if after else 0.0 for after in found]


def _style(number: int) -> str:
    return "line" if number < len(SERIES) else "dashed"


def cost_charts(views: Sequence[RunView]) -> Iterator[Chart]:
    """Speed, memory, device time and money as bars; those that any run knows."""
    currencies = currencies_of(views)
    named: tuple[tuple[str, Callable[[RunView], float | None], Callable[[float], str]], ...] = (
        ("Supervised tokens/s", lambda view: view.totals.supervised_tokens_per_s, count),
        ("Peak memory of a rank", peak_bytes, in_bytes),
        ("Device-hours", lambda view: view.totals.device_hours, short_number),
        # Bars of different currencies beside each other would compare nothing.
        ("Cost", lambda view: view.totals.cost if len(currencies) == 1 else None, lambda value: money(value, currencies[0])),
    )
    for title, of, show in named:
        values = [of(view) for view in views]
        if any(values):
            layer = Layer(name=title, values=[float("nan") if value is None else value for value in values], colour="series-1")
            yield bars(title, [view.name for view in views], [layer], show=show, colours=[series_colour(number) for number in range(len(views))])


def phase_chart(views: Sequence[RunView]) -> Chart | None:
    """The mean phases of an update, a bar a run; None where no run has any."""
    sums = [view.phase_seconds for view in views]
    if not any(value for each in sums for value in each.values()):
        return None
    wholes = [sum(each.values()) or 1.0 for each in sums]
    layers = [
        Layer(name=PHASE_NAMES[name], values=[each[name] / whole for each, whole in zip(sums, wholes, strict=True)], colour=f"phase-{name}")
        for name in PHASE_NAMES
        if any(each[name] for each in sums)
    ]
    return stacked_bars("Where the time went", [view.name for view in views], layers, y=Axis(name="share of the time", show=share_tick, from_zero=True))
