"""The result of a scaling test as text for a terminal. Pure functions."""

from __future__ import annotations

from ftcore.spec.run_lines import PHASES
from ftcore.spec.scale_result import Agreement, ScalePoint, ScaleResult
from launcher.memory.cost_text import amount, duration
from launcher.memory.fit import gib
from launcher.scaling.request import STRONG

HEAD = ("ranks", "stage", "s/update", "spread", "speedup", "ideal", "efficiency", "by cores", "superv. tok/s", "a rank", "memory", "run", "device-min")
_WORDS = {"does_not_fit": "does not fit", "refused": "not allowed", "waiting": "not measured yet"}


def render_result(result: ScaleResult) -> str:
    """The whole result: a line a point, phases, what limits each, agreement of losses, and what to know."""
    lines = [f"{result.mode} scaling of {result.model} in {result.precision}: {_counted(result)}", ""]
    lines += _grid(_table(result)) if result.measured else ["no point is measured"]
    lines += _missing(result)
    if result.measured:
        lines += ["", "where an update's time goes, mean over ranks", *_phases(result)]
        lines += ["", "limited by", *(f"  {_where(point)}: {point.limiting}" for point in result.measured)]
    if result.mode == STRONG:
        lines += ["", *_agreement(result.agreement, result)]
    return "\n".join([*lines, *(f"note: {note}" for note in result.notes)])


def _counted(result: ScaleResult) -> str:
    each = result.updates // result.windows
    window = f"{each} update{'s' if each > 1 else ''}"
    what = f"median of {result.windows} windows of {window}" if result.windows > 1 else window
    return f"{what}, after {result.warm_up} to warm up"


def _table(result: ScaleResult) -> list[tuple[str, ...]]:
    """The head and a row a measured point; with a price what the whole run would cost at its speed."""
    rows = [HEAD, *(row for point in result.points if (row := _row(point)))]
    if result.price_per_hour is None:
        return rows
    prices = [amount((point.device_minutes or 0.0) / 60 * result.price_per_hour) for point in result.measured]
    return [(*row, last) for row, last in zip(rows, [f"price {result.currency}", *prices], strict=True)]


def _row(point: ScalePoint) -> tuple[str, ...] | None:
    if not point.is_measured:
        return None
    mark = "*" if point.oversubscribed else ""
    by_cores = f"{point.normalised_efficiency:.0%}" if point.cores and point.normalised_efficiency is not None else "-"
    return (
        f"{point.ranks}{mark}",
        str(point.stage),
        _number(point.update_seconds, ".4g"),
        _number(point.spread, ".0%"),
        _number(point.speedup, ".2f"),
        _number(point.ideal_speedup, ",.3g" if (point.ideal_speedup or 0) < 1000 else ",.0f"),
        _number(point.efficiency, ".0%"),
        by_cores,
        _number(point.supervised_tokens_per_s, ",.0f"),
        _number(point.supervised_tokens_per_s_per_rank, ",.0f"),
        gib(point.peak_memory_bytes or 0),
        duration(60 * point.run_minutes) if point.run_minutes is not None else "-",
        _number(point.device_minutes, ",.3g" if (point.device_minutes or 0) < 1000 else ",.0f"),
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _grid(rows: list[tuple[str, ...]]) -> list[str]:
    """Columns set right, as wide as their longest text."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _missing(result: ScaleResult) -> list[str]:
    left = [point for point in result.points if not point.is_measured]
    return [f"{_where(point)}: {_WORDS.get(point.state, point.state)}" + (f" ({point.reason})" if point.reason else "") for point in left]


def _where(point: ScalePoint) -> str:
    return f"{point.ranks} rank{'s' if point.ranks > 1 else ''} in stage {point.stage}"


def _phases(result: ScaleResult) -> list[str]:
    """A line a point: the share of each phase that any point has."""
    shown = [phase for phase in PHASES if any(_share(point, phase) >= 0.0005 for point in result.measured)]
    head = ("ranks", "stage", *(phase.replace("_", " ") for phase in shown), "sum")
    rows = [(str(point.ranks), str(point.stage), *(f"{_share(point, phase):.1%}" for phase in shown), f"{_sum(point):.1%}") for point in result.measured]
    return _grid([head, *rows])


def _share(point: ScalePoint, phase: str) -> float:
    return point.phases.get(phase, 0.0) / (point.update_seconds or 1.0)


def _sum(point: ScalePoint) -> float:
    return sum(point.phases.values()) / (point.update_seconds or 1.0)


def _agreement(agreement: Agreement | None, result: ScaleResult) -> list[str]:
    if agreement is None:
        return ["losses: nothing to compare before two points are measured"]
    bound = f"tolerance {agreement.tolerance:.2g}"
    if agreement.largest_loss_gap is None:
        return [f"losses: NOT comparable, a loss is missing or no number; {bound}"]
    verdict = "agree" if agreement.passed else "DIFFER"
    lines = [f"losses: {verdict}, largest relative distance from {agreement.reference} {agreement.largest_loss_gap:.1e}, {bound}"]
    if not agreement.passed:
        apart = [point for point in result.measured if point.loss_gap is None or point.loss_gap > agreement.tolerance]
        lines += [f"  {point.name}: {_number(point.loss_gap, '.1e')}" for point in apart]
    return lines
