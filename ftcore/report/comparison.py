"""Runs side by side as numbers: a row a measure, a column a run, the best of a row marked where the runs can be compared."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ftcore.report.answers import newest_scores
from ftcore.report.blocks import Cell, Column, Table
from ftcore.report.curves import as_number
from ftcore.report.memory import planned_bytes
from ftcore.report.numbers import NONE, count, duration, fixed, in_bytes, money, percent, short_number
from ftcore.report.phase_times import limiting
from ftcore.report.run_view import RunView, currencies_of, method_name, model_name, peak_bytes, setting, trained_parameters
from ftcore.report.series_of_runs import mark_of

Value = float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A row of the table."""

    name: str
    values: tuple[Value, ...]
    show: Callable[[Value], str]
    best: str = ""
    """low, high, or empty: neither is better."""


def comparison_table(views: Sequence[RunView]) -> Table:
    """The table of all runs."""
    words = [
        ("model", [model_name(view) for view in views]),
        ("method", [method_name(view) for view in views]),
        ("setting", [setting(view) for view in views]),
    ]
    rows: list[tuple[str | Cell, ...]] = [("state", *(Cell(text=view.state, tone=view.tone) for view in views))]
    rows += [(name, *values) for name, values in words]
    rows += [(measure.name, *_cells(measure)) for measure in measures(views) if any(_is_told(value) for value in measure.values)]
    rows.append(("limited by", *(limiting(view.phase_seconds)[0] for view in views)))
    columns = (Column(name=""), *(Column(name=view.name, mark=mark_of(number)) for number, view in enumerate(views)))
    note = "Green: the best of a row. Losses and scores of answers are marked only where the held-out rows are the same."
    return Table(columns=columns, rows=tuple(rows), name="Side by side", note=note, is_pinned=True)


def _cells(measure: Measure) -> Iterator[Cell]:
    told = [value for value in measure.values if value is not None and math.isfinite(value)]
    # What looks the same is no better.
    is_ranked = measure.best and len({measure.show(value) for value in told}) > 1
    best = measure.show({"low": min, "high": max}[measure.best](told)) if is_ranked else ""
    return (Cell(text=measure.show(value), tone="good" if best and measure.show(value) == best else "") for value in measure.values)


def _is_told(value: Value) -> bool:
    return value is not None and not math.isnan(value)


def measures(views: Sequence[RunView]) -> Iterator[Measure]:
    """Quality, then work, speed, memory, time and money."""
    yield from _quality(views)

    def row(name: str, of: Callable[[RunView], Value], show: Callable[[Value], str] = count, best: str = "") -> Measure:
        return Measure(name=name, values=tuple(of(view) if view.lines else None for view in views), show=show, best=best)

    def bill(of: Callable[[RunView], Value], name: str, currency: str) -> Measure:
        return row(f"{name}, {currency}", lambda view: of(view) if view.totals.currency == currency else None, lambda value: money(value, ""), "low")

    yield row("updates", lambda view: view.totals.updates)
    yield row("supervised tokens trained on", lambda view: view.totals.supervised_tokens)
    yield row("trained parameters", lambda view: trained_parameters(view)[0])
    yield row("of all parameters", _trained_share, percent)
    yield row("tokens/s", lambda view: view.totals.tokens_per_s, count, "high")
    yield row("supervised tokens/s", lambda view: view.totals.supervised_tokens_per_s, count, "high")
    yield row("padding", lambda view: view.totals.padding_share, percent, "low")
    yield row("model flops utilisation", lambda view: view.totals.mfu, percent, "high")
    yield row("peak memory of a rank", peak_bytes, in_bytes, "low")
    yield row("planned memory of a rank", planned_bytes, in_bytes)
    yield row("time", lambda view: view.totals.wall_s, duration, "low")
    yield row("time of the updates alone", lambda view: view.totals.training_s, duration, "low")
    yield row("device-hours", lambda view: view.totals.device_hours, short_number, "low")
    # A row for each currency: amounts of different ones can't be compared.
    for currency in currencies_of(views):
        yield bill(lambda view: view.totals.cost, "cost", currency)
        yield bill(lambda view: view.totals.cost_per_million_supervised, "per million supervised tokens", currency)


def _trained_share(view: RunView) -> Value:
    trained, parameters = trained_parameters(view)
    return trained / parameters if trained is not None and parameters else None


def _quality(views: Sequence[RunView]) -> Iterator[Measure]:
    last = tuple(as_number(view.lines[-1].get("loss")) if view.lines else None for view in views)
    yield Measure(name="last training loss", values=last, show=fixed)
    for name in dict.fromkeys(name for view in views for name in view.evaluations):
        scores = [view.evaluations.get(name, []) for view in views]
        best = "low" if _same_rows(views, name) else ""
        before = tuple(each[0].loss if each and each[0].update == 0 else None for each in scores)
        yield Measure(name=f"{name}: loss before", values=before, show=fixed)
        yield Measure(name=f"{name}: last loss", values=tuple(each[-1].loss if each else None for each in scores), show=fixed, best=best)
        lowest = tuple(min((one.loss for one in each if math.isfinite(one.loss)), default=None) for each in scores)
        yield Measure(name=f"{name}: lowest loss", values=lowest, show=fixed, best=best)
    answered = [newest_scores(view) for view in views]
    for name in dict.fromkeys(name for each in answered for name in each):
        found = [each.get(name) for each in answered]
        best = "high" if len({score.rows for score in found if score is not None}) == 1 else ""
        yield Measure(name=name, values=tuple(None if score is None else score.value for score in found), show=percent, best=best)


def _same_rows(views: Sequence[RunView], name: str) -> bool:
    """Whether all runs that have the set hold out the same rows, read by the same tokenizer."""
    prints = {_fingerprint(view, name) for view in views if name in view.evaluations}
    return len(prints) == 1 and None not in prints


def _fingerprint(view: RunView, name: str) -> str | None:
    try:
        held_out: Any = json.loads(view.record.run_dir.prepared.read_text(encoding="utf-8"))["eval"]
        return str(held_out[name if name in held_out else name.rpartition("/")[0]]["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def missing(value: str) -> str:
    """An empty text as a dash."""
    return value or NONE
