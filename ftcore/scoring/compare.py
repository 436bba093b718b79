"""Two results side by side: per set and metric the difference, its interval, and better, same or worse."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ftcore.scoring.paired import Difference, paired_difference
from ftcore.scoring.result import Result, RowResult, SetResult, read_result, read_rows
from ftcore.spec.errors import DataError, Problem

LOSS = "loss"
COMPARISON_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure of one set, before and after."""

    set: str
    metric: str
    rows: int
    before: float | None
    after: float | None
    difference: float | None
    """after - before; None when one of them is not finite."""
    low: float | None
    """Lower end of the 95 % interval of the difference; None when there is none."""
    high: float | None
    verdict: str
    """better, same or worse; same when the interval holds 0 or there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Content of comparison.json."""

    before: str
    """Name of the model."""
    after: str
    lines: tuple[Line, ...]
    left_out: tuple[str, ...]
    """What only one side has, or what was measured otherwise: one sentence each."""
    version: int = COMPARISON_VERSION

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def compare(before: Path, after: Path) -> Comparison:
    """Compares two results (folders, or their evaluation.json).

    Raises CheckpointError when one can't be read, DataError when they are of other rows or share no set: a difference would
    then say something about the rows, not about the models.
    """
    (before_folder, old), (after_folder, new) = read_result(before), read_result(after)
    shared = [name for name in old.sets if name in new.sets]
    _require_same_rows(old, new, shared)
    lines: list[Line] = []
    left_out = [f"set {name}: only one of the two has it" for name in sorted(old.sets.keys() ^ new.sets.keys())]
    for name in shared:
        rows = read_rows(before_folder, name), read_rows(after_folder, name)
        _require_same_numbers(name, *rows)
        lines.append(_loss_line(name, old.sets[name], new.sets[name], *rows))
        metric_lines, reasons = _metric_lines(name, (old, new), *rows)
        lines += metric_lines
        left_out += reasons
    return Comparison(before=_label(old), after=_label(new), lines=tuple(lines), left_out=tuple(left_out))


def _label(result: Result) -> str:
    update = result.model.update
    return result.model.name if update is None else f"{result.model.name} (update {update})"


def _require_same_rows(old: Result, new: Result, shared: list[str]) -> None:
    if not shared:
        held = f"one has {', '.join(old.sets) or 'none'}, the other {', '.join(new.sets) or 'none'}"
        raise DataError(f"the results share no held-out set: {held}", where="--compare", fix="evaluate both with the same spec")
    problems = []
    for name in shared:
        one, other = old.sets[name], new.sets[name]
        if one.fingerprint != other.fingerprint:
            what = (
                f"the rows are not the same (fingerprint {one.fingerprint[:12]}: {one.rows} rows of {one.path}; "
                f"{other.fingerprint[:12]}: {other.rows} rows of {other.path})"
            )
            fix = "evaluate both with the same data, tokenizer, chat template, data.max_length and data.overlong"
            problems.append(Problem(what=what, where=f"set {name}", fix=fix))
    if problems:
        raise DataError(problems)


def _require_same_numbers(name: str, before: list[RowResult], after: list[RowResult]) -> None:
    if [(row.row, row.tokens) for row in before] != [(row.row, row.tokens) for row in after]:
        raise DataError(f"rows/{name}.jsonl of the two results name other rows", where=f"set {name}", fix="evaluate both again")


def _loss_line(name: str, old: SetResult, new: SetResult, before: list[RowResult], after: list[RowResult]) -> Line:
    """A lower loss is better; rows whose loss is not finite have no difference, and fewer of them is better."""
    infinite = [sum(not math.isfinite(row.loss_sum) for row in rows) for rows in (before, after)]
    if any(infinite):
        verdict = "same" if infinite[0] == infinite[1] else "better" if infinite[1] < infinite[0] else "worse"
        return _line(name, LOSS, len(before), (old.loss, new.loss), None, verdict)
    weights = np.array([row.tokens for row in before], dtype=np.float64)
    difference = paired_difference(_values(before, lambda row: row.loss_sum), _values(after, lambda row: row.loss_sum), weights)
    return _line(name, LOSS, len(before), (old.loss, new.loss), difference, _verdict(difference, lower_is_better=True))


def _metric_lines(name: str, results: tuple[Result, Result], before: list[RowResult], after: list[RowResult]) -> tuple[list[Line], list[str]]:
    """(a line for each metric that both have, why the others are left out)."""
    old, new = (result.sets[name] for result in results)
    reasons = [f"set {name}, {metric}: only one of the two has it" for metric in sorted(old.metrics.keys() ^ new.metrics.keys())]
    common = [metric for metric in old.metrics if metric in new.metrics]
    unlike = _measured_otherwise(results, before, after)
    if unlike:
        return [], [*reasons, *(f"set {name}, {metric}: {unlike}" for metric in common)]
    lines = []
    for metric in common:
        if metric == "regex" and results[0].settings.regex != results[1].settings.regex:
            reasons.append(f"set {name}, regex: another evaluation.regex")
            continue
        scored = [[row for row in rows if row.scores] for rows in (before, after)]
        first, second = (np.array([row.scores[metric] for row in rows], dtype=np.float64) for rows in scored)
        difference = paired_difference(first, second, np.ones(len(first)))
        verdict = _verdict(difference, lower_is_better=False)
        lines.append(_line(name, metric, len(first), (old.metrics[metric], new.metrics[metric]), difference, verdict))
    return lines, reasons


def _measured_otherwise(results: tuple[Result, Result], before: list[RowResult], after: list[RowResult]) -> str:
    """Why answers of the two can't be compared; empty when they can."""
    limits = [result.settings.max_new_tokens for result in results]
    if limits[0] != limits[1]:
        return f"evaluation.max_new_tokens was {limits[0]} and {limits[1]}"
    answered = [[row.row for row in rows if row.scores] for rows in (before, after)]
    return "" if answered[0] == answered[1] else f"{len(answered[0])} and {len(answered[1])} rows were answered"


def _values(rows: list[RowResult], pick: Callable[[RowResult], float]) -> np.ndarray:
    return np.array([pick(row) for row in rows], dtype=np.float64)


def _verdict(difference: Difference, *, lower_is_better: bool) -> str:
    if difference.holds_zero:
        return "same"
    return "better" if (difference.value < 0) == lower_is_better else "worse"


def _line(name: str, metric: str, rows: int, values: tuple[float | None, float | None], difference: Difference | None, verdict: str) -> Line:
    gap, low, high = (difference.value, difference.low, difference.high) if difference is not None else (None, None, None)
    return Line(set=name, metric=metric, rows=rows, before=values[0], after=values[1], difference=gap, low=low, high=high, verdict=verdict)
