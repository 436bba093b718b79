"""What a run learned: loss, evaluations, learning rate and gradient norms."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ftcore.report.answers import answer_table
from ftcore.report.blocks import Block, Chart, Charts, Column, Section, Table
from ftcore.report.charts import Axis, Mark, Series, line_chart
from ftcore.report.curves import as_number, column, sampled, smoothed, smoothing_span, thinned, updates_of, without_peaks
from ftcore.report.foreseen import band, in_words
from ftcore.report.numbers import count, fixed, short_number
from ftcore.report.palette import series_colour
from ftcore.report.run_view import RunView, perplexity
from ftcore.spec.evaluation_forecast import EvaluationForecast

MOST_SETS = 6
"""Lines in one chart; the table has them all."""
MOST_MARKS = 12
MOST_DOTS = 60
"""Evaluations with a dot each; of more there is a line alone."""
LOSS_FINDINGS = ("spike", "divergence", "oscillation", "plateau")
UPDATE = Axis(name="update", is_whole=True)


def learning(view: RunView, foreseen: EvaluationForecast | None = None) -> Section:
    """The part on learning; with what there is. `foreseen`: where its evaluation loss is going."""
    if not view.lines and not view.evaluations:
        return Section(title="Learning", lead="There is nothing to show yet.")
    charts = [*_losses(view), *_evaluated(view, foreseen), *_optimizing(view)]
    blocks: list[Block] = [Charts(charts=tuple(charts))]
    if view.evaluations:
        blocks.append(evaluation_table(view))
    answered = answer_table(view)
    if answered is not None:
        blocks.append(answered)
    return Section(title="Learning", blocks=tuple(blocks), lead="Losses are per supervised token.")


def restarts(view: RunView) -> list[Mark]:
    """Where later attempts began."""
    return [Mark(x=each.first_update, name="resumed") for each in view.attempts[1:] if each.first_update][:MOST_MARKS]


def _losses(view: RunView) -> Iterator[Chart]:
    lines = view.lines
    if not lines:
        return
    x, y = updates_of(lines), column(lines, "loss")
    raw = thinned(x, y)
    span = smoothing_span(len(y))
    name = "each logged update" if not raw.low else f"mean of {math.ceil(len(y) / len(raw.x))} logged updates"
    series = [Series(name=name, x=raw.x, y=raw.y, low=raw.low, high=raw.high, style="faint" if span else "line")]
    if span:
        smooth = sampled(x, smoothed(without_peaks(y), column(lines, "supervised_tokens")))
        series.append(Series(name=f"mean of {span} around it", x=smooth.x, y=smooth.y))
    found = [event for event in view.record.events if event["event"] == "finding" and event.get("kind") in LOSS_FINDINGS]
    marks = [Mark(x=float(event["update"]), name="finding", colour="warn") for event in found if type(event.get("update")) is int][:MOST_MARKS]
    missing = sum(not math.isfinite(value) for value in y)
    note = f"{count(missing)} {'update has' if missing == 1 else 'updates have'} no finite loss: gaps." if missing else ""
    yield line_chart("Training loss", series, x=UPDATE, y=Axis(caps=True), marks=[*restarts(view), *marks], wide=True, note=note)
    yield from _adapters(view)


def _adapters(view: RunView) -> Iterator[Chart]:
    """A line for each of several adapters."""
    names = sorted({name for line in view.lines if isinstance(line.get("losses"), dict) for name in line["losses"]})
    if len(names) < 2:
        return
    lines = [line for line in view.lines if isinstance(line.get("losses"), dict)]
    series = []
    for number, name in enumerate(names[:MOST_SETS]):
        curve = thinned(updates_of(lines), column([line["losses"] for line in lines], name))
        series.append(Series(name=name, x=curve.x, y=curve.y, low=curve.low, high=curve.high, colour=series_colour(number)))
    note = f"The first {MOST_SETS} of {len(names)} adapters." if len(names) > MOST_SETS else ""
    yield line_chart("Training loss by adapter", series, x=UPDATE, y=Axis(caps=True), note=note)


def _evaluated(view: RunView, foreseen: EvaluationForecast | None) -> Iterator[Chart]:
    shown = list(view.evaluations.items())[:MOST_SETS]
    if not shown:
        return
    series, worlds = [], []
    for number, (name, scores) in enumerate(shown):
        x, colour = [float(each.update) for each in scores], series_colour(number)
        style = "dots" if len(x) <= MOST_DOTS else "line"
        series.append(Series(name=name, x=x, y=[each.loss for each in scores], colour=colour, style=style))
        worlds.append(Series(name=name, x=x, y=[perplexity(each.loss) for each in scores], colour=colour, style=style))
    left = f"The first {MOST_SETS} of {len(view.evaluations)} sets; all are in the table." if len(view.evaluations) > MOST_SETS else ""
    note = " ".join(part for part in (in_words(foreseen), left) if part)
    yield line_chart("Evaluation loss", [*series, *band(foreseen, "soft")], x=UPDATE, y=Axis(), note=note)
    values = [value for each in worlds for value in each.y if math.isfinite(value)]
    is_wide = bool(values) and max(values) > 20 * min(values)
    yield line_chart("Perplexity", worlds, x=UPDATE, y=Axis(name="log scale" if is_wide else "", is_log=is_wide), note="exp(evaluation loss).")


def _optimizing(view: RunView) -> Iterator[Chart]:
    lines = view.lines
    if not lines:
        return
    x = updates_of(lines)
    rate = thinned(x, column(lines, "learning_rate"))
    yield line_chart("Learning rate", [Series(name="", x=rate.x, y=rate.y, colour="series-3")], x=UPDATE, y=Axis(from_zero=True))
    norm = thinned(x, column(lines, "grad_norm"))
    if not norm.is_empty:
        limit = as_number(view.spec("optimizer.max_grad_norm"))
        own = Series(name="before clipping", x=norm.x, y=norm.y, low=norm.low, high=norm.high, colour="series-4")
        lines_at = (Mark(x=limit, name=f"clipped above {short_number(limit)}", colour="wrong"),) if limit > 0 else ()
        yield line_chart("Gradient norm", [own], x=UPDATE, y=Axis(from_zero=True, caps=True, limits=lines_at), marks=restarts(view))
    scale = thinned(x, column(lines, "loss_scale"))
    if not scale.is_empty:
        yield line_chart("Loss scale", [Series(name="", x=scale.x, y=scale.y, colour="series-5")], x=UPDATE, y=Axis(name="log scale", is_log=True))


def evaluation_table(view: RunView) -> Table:
    """Each held-out set: first, best, last."""
    columns = [Column(name="held-out set")]
    columns += [Column(name=name, is_number=True) for name in ("first", "at update", "best", "at update", "last", "at update", "perplexity", "evaluations")]
    rows = []
    for name, scores in view.evaluations.items():
        best = min((each for each in scores if math.isfinite(each.loss)), key=lambda each: each.loss, default=scores[0])
        cells = [text for each in (scores[0], best, scores[-1]) for text in (fixed(each.loss), count(each.update))]
        rows.append((name, *cells, short_number(perplexity(scores[-1].loss)), count(len(scores))))
    return Table(name="Evaluations", columns=tuple(columns), rows=tuple(rows))
