"""The result of a scaling test as text for a terminal: tables of 80 columns at most, text of 100. Pure functions."""

from __future__ import annotations

import textwrap

from ftcore.spec.run_lines import PHASES
from ftcore.spec.scale_result import Agreement, ScalePoint, ScaleResult
from launcher.memory.cost_text import amount, rough_time
from launcher.memory.fit import gib
from launcher.scaling.request import STRONG

SPEED_HEAD = ("s/update", "spread", "speedup", "ideal", "eff.", "by cores", "superv. tok/s", "a rank")
COST_HEAD = ("memory", "run", "device-min")
WIDTH = 100
_PHASES = {"communication": "communic.", "optimizer": "optim.", "checkpoint": "checkp.", "evaluation": "evaluat."}
_WORDS = {"does_not_fit": "does not fit", "refused": "not allowed", "waiting": "not measured yet"}


def render_result(result: ScaleResult) -> str:
    """The whole result: a line a point, phases, what limits each, agreement of losses, and what to know."""
    stage = f", ZeRO stage {result.points[0].stage}" if _stages(result) == 1 else ""
    lines = [*_wrapped(f"{result.mode} scaling of {result.model} in {result.precision}{stage}: {_counted(result)}"), ""]
    lines += [*_speeds(result), "", *_costs(result)] if result.measured else ["no point is measured"]
    lines += _missing(result)
    if result.measured:
        lines += ["", "where an update's time goes, mean over ranks", *_phases(result)]
        lines += ["", "limited by", *(part for point in result.measured for part in _wrapped(f"  {_where(point)}: {point.limiting}", "    "))]
    if result.mode == STRONG:
        lines += ["", *_agreement(result.agreement, result)]
    return "\n".join([*lines, *(part for note in result.notes for part in _wrapped(f"note: {note}"))])


def _wrapped(line: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _counted(result: ScaleResult) -> str:
    each = result.updates // result.windows
    window = f"{each} update{'s' if each > 1 else ''}"
    what = f"median of {result.windows} windows of {window}" if result.windows > 1 else window
    return f"{what}, after {result.warm_up} to warm up"


def _speeds(result: ScaleResult) -> list[str]:
    """A row a measured point: how fast it is."""
    return _grid([(*_names(result), *SPEED_HEAD), *((*_which(point, result, mark=True), *_speed(point)) for point in result.measured)])


def _costs(result: ScaleResult) -> list[str]:
    """A row a measured point: what it takes, and with a price what the whole run would cost at its speed."""
    price = result.price_per_hour
    rows = [(*_names(result), *COST_HEAD, *((f"price {result.currency}",) if price is not None else ()))]
    for point in result.measured:
        minutes = point.device_minutes
        told = (amount(minutes / 60 * price) if minutes is not None else "",) if price is not None else ()
        rows.append((*_which(point, result), *_cost(point), *told))
    return _grid(rows)


def _names(result: ScaleResult) -> tuple[str, ...]:
    """How points are told apart: the stage stands above where they have one."""
    return ("ranks", "stage") if _stages(result) > 1 else ("ranks",)


def _stages(result: ScaleResult) -> int:
    return len({point.stage for point in result.points})


def _which(point: ScalePoint, result: ScaleResult, *, mark: bool = False) -> tuple[str, ...]:
    ranks = f"{point.ranks}{'*' if mark and point.oversubscribed else ''}"
    return (ranks, str(point.stage)) if _stages(result) > 1 else (ranks,)


def _speed(point: ScalePoint) -> tuple[str, ...]:
    by_cores = f"{point.normalised_efficiency:.0%}" if point.cores and point.normalised_efficiency is not None else "-"
    return (
        _number(point.update_seconds, ".4g"),
        # Of one window alone nothing is known.
        _number(point.spread if len(point.window_seconds) > 1 else None, ".0%"),
        _number(point.speedup, ".2f"),
        _number(point.ideal_speedup, ",.3g" if (point.ideal_speedup or 0) < 1000 else ",.0f"),
        _number(point.efficiency, ".0%"),
        by_cores,
        _number(point.supervised_tokens_per_s, ",.0f"),
        _number(point.supervised_tokens_per_s_per_rank, ",.0f"),
    )


def _cost(point: ScalePoint) -> tuple[str, ...]:
    return (
        gib(point.peak_memory_bytes or 0),
        rough_time(60 * point.run_minutes) if point.run_minutes is not None else "-",
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
    head = (*_names(result), *(_PHASES.get(phase, phase.replace("_", " ")) for phase in shown), "sum")
    rows = [(*_which(point, result), *(f"{_share(point, phase):.1%}" for phase in shown), f"{_sum(point):.1%}") for point in result.measured]
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
