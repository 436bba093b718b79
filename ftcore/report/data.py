"""The data of a run: rows, lengths, and how full its micro-steps were."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ftcore.data.tokens import Int32Array
from ftcore.report.blocks import Block, Chart, Charts, Column, Facts, Section, Table
from ftcore.report.charts import Axis, Layer, Series, histogram, line_chart
from ftcore.report.curves import as_number, column, thinned, updates_of
from ftcore.report.learning import UPDATE
from ftcore.report.numbers import count, fixed, in_bytes, percent, share_tick, short_number
from ftcore.report.palette import series_colour
from ftcore.report.run_view import RunView
from ftcore.spec.errors import DataError
from ftcore.spec.run_record import number

MOST_BINS = 32
MOST_SETS = 6
"""In the chart of lengths."""


def data(view: RunView) -> Section:
    """The part on data."""
    plan = view.record.plan
    charts = [*_lengths(view), *(list(_planned_updates(view)) or _measured_updates(view))]
    is_stream = plan is not None and "lanes" in plan
    rows = [*(_stream_facts(plan) if is_stream else _facts(plan)), *_dropped(view)] if plan else []
    blocks: list[Block] = [Facts(rows=tuple(rows))] if rows else []
    if plan and isinstance(plan.get("sets"), Mapping) and len(plan["sets"]) > 1:
        blocks.append(_sets(plan["sets"]))
    if charts:
        blocks.append(Charts(charts=tuple(charts)))
    return Section(title="Data", blocks=tuple(blocks), lead="" if blocks else "It is not prepared yet.")


def _facts(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    def whole(key: str) -> str:
        return count(as_number(plan.get(key)))

    if "rows" in plan:
        dropped = plan.get("dropped")
        lost = ", ".join(f"{count(as_number(value))} {reason}" for reason, value in dropped.items() if value) if isinstance(dropped, Mapping) else ""
        yield "rows", f"{whole('rows')} read, {whole('samples')} samples kept" + (f"; dropped: {lost}" if lost else "; none dropped")
    if number(dict(plan), "truncated"):
        yield "cut", f"{whole('truncated')} rows were longer than data.max_length"
    if number(dict(plan), "tokens"):
        share = number(dict(plan), "supervised_tokens") / number(dict(plan), "tokens")
        yield "tokens", f"{whole('tokens')}, of which {whole('supervised_tokens')} are supervised ({percent(share)})"
    if "epochs" in plan:
        yield "plan", f"{whole('total_updates')} updates, {short_number(as_number(plan.get('epochs')))} epochs"
    if "fill" in plan:
        span = f" ({percent(as_number(plan.get('fill_min')))} to {percent(as_number(plan.get('fill_max')))} by update)"
        yield "fill", f"{percent(as_number(plan['fill']))} of micro_batch_tokens hold tokens{span}"
    if "cost_imbalance" in plan:
        waiting = percent(as_number(plan.get("waiting")))
        yield "balance", f"the heaviest rank has {fixed(as_number(plan['cost_imbalance']), 3)} times the mean work; {waiting} of the time is waiting for it"
    if "longest" in plan and isinstance(plan["longest"], Mapping):
        longest = plan["longest"]
        yield "longest sample", f"{count(as_number(longest.get('tokens')))} tokens: row {longest.get('row')} of {longest.get('set')}"
    notes = plan.get("notes")
    yield from (("note", str(each)) for each in (notes if isinstance(notes, list) else []))


def _stream_facts(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Of a run whose data are read while it trains."""
    own = dict(plan)
    yield "streamed", f"{count(number(own, 'files'))} files with {in_bytes(number(own, 'bytes'))}; samples and tokens are counted while training"
    yield "rows an epoch", count(as_number(plan["rows"])) if plan.get("rows") is not None else "not known beforehand"
    yield "lanes", f"{count(number(own, 'lanes'))} over {count(number(own, 'shards'))} parts of files"
    yield "plan", f"{count(number(own, 'total_updates'))} updates" + ("" if plan.get("repeat") else " at most: the run ends with the data")
    notes = plan.get("notes")
    yield from (("note", str(each)) for each in (notes if isinstance(notes, list) else []))


def _dropped(view: RunView) -> Iterator[tuple[str, str]]:
    """What a stream dropped and cut while training."""
    found: Counter[str] = Counter()
    for line in view.lines:
        dropped = line.get("dropped_rows")
        if isinstance(dropped, Mapping):
            found.update({str(reason): int(number(dict(dropped), reason)) for reason in dropped})
    if found:
        yield "dropped while training", ", ".join(f"{count(times)} {reason}" for reason, times in found.most_common())


def _measured_updates(view: RunView) -> Iterator[Chart]:
    """Size and padding by update, as they were trained: where no plan says them beforehand."""
    x = updates_of(view.lines)
    named = (("all tokens", "tokens", "series-1"), ("supervised tokens", "supervised_tokens", "series-2"))
    curves = [(name, thinned(x, column(view.lines, key)), colour) for name, key, colour in named]
    sizes = [Series(name=name, x=each.x, y=each.y, low=each.low, high=each.high, colour=colour) for name, each, colour in curves if not each.is_empty]
    if sizes:
        yield line_chart("Tokens of an update", sizes, x=UPDATE, y=Axis(from_zero=True))
    padding = thinned(x, column(view.lines, "padding_share"))
    if not padding.is_empty:
        own = Series(name="", x=padding.x, y=padding.y, low=padding.low, high=padding.high, colour="series-3")
        yield line_chart("Padding in what is computed", [own], x=UPDATE, y=Axis(show=share_tick, from_zero=True))


def _sets(sets: Mapping[str, Any]) -> Table:
    columns = (Column(name="set"), *(Column(name=name, is_number=True) for name in ("rows", "samples", "drawn", "share of samples", "share of tokens")))
    rows = []
    for name, each in sets.items():
        if isinstance(each, Mapping):
            counts = [count(as_number(each.get(key))) for key in ("rows", "samples", "drawn")]
            rows.append((name, *counts, *(percent(as_number(each.get(key))) for key in ("share", "token_share"))))
    return Table(name="Mix", columns=columns, rows=tuple(rows))


def _lengths(view: RunView) -> Iterator[Chart]:
    """A histogram of the prepared samples, while they lie in the cache."""
    prepared = _prepared(view)
    found = [(name, lengths) for name, path in prepared[:MOST_SETS] if len(lengths := _lengths_in(path))]
    if not found:
        return
    longest = max(int(lengths.max()) for _, lengths in found)
    edges = _edges(longest)
    layers = [Layer(name=name, values=_counts(lengths, edges), colour=series_colour(number)) for number, (name, lengths) in enumerate(found)]
    limit = as_number(view.spec("data.max_length"))
    notes = [f"data.max_length is {count(limit)}."] if math.isfinite(limit) else []
    notes += [f"The first {MOST_SETS} of {len(prepared)} sets."] if len(prepared) > MOST_SETS else []
    yield histogram("Lengths of samples", edges, layers, x=Axis(name="tokens", show=short_number), y=Axis(name="samples", from_zero=True), note=" ".join(notes))


def _prepared(view: RunView) -> list[tuple[str, Path]]:
    """Name and samples of each set that is trained on."""
    try:
        prepared = json.loads(view.record.run_dir.prepared.read_text(encoding="utf-8"))
        train = prepared["train"]
        sets = {"train": train} if "arrow" in train else train
        return [(name, Path(each["arrow"])) for name, each in sets.items() if each.get("arrow")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _lengths_in(path: Path) -> Int32Array:
    """[S] tokens of each sample; none where the cache holds them no longer."""
    from ftcore.data.cache import SampleSet

    try:
        return SampleSet.open(path).lengths
    except DataError:
        return np.zeros(0, dtype=np.int32)


def _edges(longest: int) -> list[float]:
    """Bins of one, two or five times a power of ten tokens each."""
    step = next(size * 10**power for power in range(12) for size in (1, 2, 5) if longest / (size * 10**power) <= MOST_BINS)
    return [float(step * place) for place in range(longest // step + 2)]


def _counts(lengths: Int32Array, edges: list[float]) -> list[float]:
    return [float(each) for each in np.bincount(lengths // int(edges[1]), minlength=len(edges) - 1)]


def _planned_updates(view: RunView) -> Iterator[Chart]:
    """Fill and padding by update, as they were planned."""
    try:
        with view.record.run_dir.plan_updates.open(encoding="utf-8", errors="replace", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("update")]
    except (OSError, csv.Error):
        return
    x = [as_number(row["update"]) for row in rows]
    fill = thinned(x, [as_number(row.get("fill")) for row in rows])
    padding = thinned(x, [_padding_share(row) for row in rows])
    series = [Series(name="fill of micro_batch_tokens", x=fill.x, y=fill.y, low=fill.low, high=fill.high, colour="series-3")]
    if any(value > 0 for value in padding.y):
        series.append(Series(name="padding in what is computed", x=padding.x, y=padding.y, low=padding.low, high=padding.high, colour="series-2"))
    if not fill.is_empty:
        yield line_chart("Fill and padding, as planned", series, x=UPDATE, y=Axis(show=share_tick, from_zero=True))
    size = thinned(x, [as_number(row.get("tokens")) for row in rows])
    if not size.is_empty:
        own = Series(name="", x=size.x, y=size.y, low=size.low, high=size.high, colour="series-1")
        yield line_chart("Tokens of an update, as planned", [own], x=UPDATE, y=Axis(from_zero=True))


def _padding_share(row: Mapping[str, str]) -> float:
    padding, tokens = as_number(row.get("padding_tokens")), as_number(row.get("tokens"))
    return padding / (padding + tokens) if padding + tokens > 0 else float("nan")
