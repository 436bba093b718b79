"""The charts of a scaling test: a line a stage over the ranks, a bar a point."""

from __future__ import annotations

from collections.abc import Callable

from ftcore.report.blocks import Chart
from ftcore.report.charts import Axis, Layer, Series, line_chart, stacked_bars
from ftcore.report.numbers import BYTE_UNITS, duration, in_bytes, short_number
from ftcore.report.palette import series_colour
from ftcore.report.phase_times import PHASE_NAMES
from ftcore.spec.scale_result import ScalePoint, ScaleResult

Value = Callable[[ScalePoint], float | None]


def speedup_chart(result: ScaleResult) -> Chart:
    """Speedup beside what the ranks would give at best."""
    best = []
    # Stages that were measured from different numbers of ranks on have different ideals; of one name, they share an entry of the legend.
    for base in sorted({base.ranks for point in result.measured if (base := result.baseline(point.stage)) is not None}):
        ranks = sorted({point.ranks for point in result.measured if point.ranks >= base})
        best.append(Series(name="ideal", x=ranks, y=[count / base for count in ranks], colour="soft", style="dashed"))
    by_cores = _crowd_note(result)
    return line_chart("Speedup", [*_lines(result, lambda point: point.speedup), *best], x=_RANKS, y=Axis(from_zero=True), note=by_cores)


def efficiency_chart(result: ScaleResult) -> Chart:
    """Efficiency by ranks, and by the cores that were used where ranks share cores."""
    lines = _lines(result, lambda point: point.efficiency)
    if any(point.oversubscribed for point in result.measured):
        lines += _lines(result, lambda point: point.normalised_efficiency, suffix=", by cores", style="dashed", shift=3)
    return line_chart("Efficiency", lines, x=_RANKS, y=Axis(show=lambda value: f"{value:.0%}", from_zero=True))


def rate_chart(result: ScaleResult) -> Chart:
    """Supervised tokens a second, all ranks."""
    return line_chart("Supervised tokens/s", _lines(result, lambda point: point.supervised_tokens_per_s), x=_RANKS, y=Axis(from_zero=True))


def rate_per_rank_chart(result: ScaleResult) -> Chart:
    """The same a rank."""
    return line_chart("Supervised tokens/s a rank", _lines(result, lambda point: point.supervised_tokens_per_s_per_rank), x=_RANKS, y=Axis(from_zero=True))


def memory_chart(result: ScaleResult) -> Chart:
    """Peak memory of the rank that holds most."""
    lines = _lines(result, lambda point: point.peak_memory_bytes)
    return line_chart("Peak memory of a rank", lines, x=_RANKS, y=Axis(show=in_bytes, units=BYTE_UNITS, from_zero=True))


def phases_chart(result: ScaleResult) -> Chart:
    """A bar a point, made of its phases."""
    several = len({point.stage for point in result.measured}) > 1
    labels = [f"{point.ranks}·{point.stage}" if several else str(point.ranks) for point in result.measured]
    layers = [
        Layer(name=name, values=[point.phases.get(phase, 0.0) for point in result.measured], colour=f"phase-{phase}")
        for phase, name in PHASE_NAMES.items()
        if any(point.phases.get(phase, 0.0) >= 0.0005 * (point.update_seconds or 1.0) for point in result.measured)
    ]
    return stacked_bars(
        "An update by phase", labels, layers, x=Axis(name="ranks·stage" if several else "ranks"), y=Axis(show=duration, from_zero=True), wide=True
    )


def _whole(value: float) -> str:
    return short_number(value) if value == round(value) else ""


_RANKS = Axis(name="ranks", show=_whole)


def _lines(result: ScaleResult, value: Value, *, suffix: str = "", style: str = "dots", shift: int = 0) -> list[Series]:
    """A line for each stage."""
    stages = sorted({point.stage for point in result.measured})
    lines = []
    for place, stage in enumerate(stages):
        points = sorted((point for point in result.measured if point.stage == stage), key=lambda point: point.ranks)
        y = [float(found) if (found := value(point)) is not None else float("nan") for point in points]
        name = f"stage {stage}{suffix}"
        lines.append(Series(name=name, x=[point.ranks for point in points], y=y, colour=series_colour(place + shift), style=style))
    return lines


def _crowd_note(result: ScaleResult) -> str:
    crowded = sorted({point.ranks for point in result.measured if point.oversubscribed})
    return f"With {', '.join(map(str, crowded))} ranks there are more ranks than cores: they take turns." if crowded else ""
