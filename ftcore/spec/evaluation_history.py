"""The evaluations of a run: losses by update, how early stopping counts them, and whether they have begun to rise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ftcore.spec.run_record import RunRecord, number
from ftcore.spec.schedule_lengths import warmup_updates
from ftcore.spec.sections import ScheduleSection

RISES_IN_A_ROW = 3
"""Evaluations in a row, each above the one before and all above the best, that need no estimate of the noise. By chance alone, 1 of 24 orders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """Early stopping, as ftcore.train.early_stop counts: a gain is a loss below the lowest so far by more than the threshold."""

    patience: int = 0
    """0: never."""
    threshold: float = 0.0
    lowest: float = math.inf
    without_gain: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the run ends here."""
        return 0 < self.patience <= self.without_gain

    def after(self, losses: Iterable[float]) -> StopRule:
        """The rule once these evaluations have been made."""
        lowest, count = self.lowest, self.without_gain
        for loss in losses:
            count = 0 if lowest - loss > self.threshold else count + 1
            lowest = min(lowest, loss)
        return dataclasses.replace(self, lowest=lowest, without_gain=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationHistory:
    """What is known of a run's evaluations."""

    metric: str
    points: tuple[tuple[int, float], ...]
    """(update, loss), at least one, ascending; finite losses only."""
    total_updates: int
    eval_steps: int
    """0: at the end only."""
    warmup: int
    """Updates of the learning rate's warm-up."""
    schedule: ScheduleSection
    """The learning rate's course."""
    rule: StopRule
    """Before the first evaluation."""
    ended: str = ""
    """Why no more evaluations come; empty: they do."""
    dropped: int = 0
    """Evaluations without a finite loss."""

    @property
    def best(self) -> tuple[int, float]:
        """The lowest point, the earliest of equal ones."""
        return min(self.points, key=lambda point: (point[1], point[0]))

    @property
    def due(self) -> range:
        """Updates before the last one that are still evaluated after: of a run without an end in sight more than a list could hold."""
        newest, steps = self.points[-1][0], self.eval_steps
        return range((newest // steps + 1) * steps, self.total_updates, steps) if steps else range(0)

    @property
    def left(self) -> int:
        """Evaluations that are still to come, the one at the end among them."""
        return len(self.due) + 1 if self.points[-1][0] < self.total_updates else 0

    def coming(self, place: int) -> int:
        """The update that the next evaluation (0), the one after it (1), ... is made after."""
        return self.due[place] if place < len(self.due) else self.total_updates


def evaluation_history(record: RunRecord) -> EvaluationHistory | None:
    """The evaluations of the run's metric; None before there is one with a finite loss."""
    spec = _section(record.resolved, "spec")
    evaluation = _section(spec, "evaluation")
    metric = str(_section(spec, "checkpoint").get("metric_for_best_model") or "loss")
    points, dropped = _points(record.events, metric)
    last = record.updates[-1] if record.updates else {}
    total = int(number(last, "total_updates", number(_section(spec, "train"), "max_steps")))
    if not points or total <= 0:
        return None
    course = _course(_section(spec, "schedule"))
    return EvaluationHistory(
        metric=metric,
        points=points,
        total_updates=max(total, points[-1][0]),
        eval_steps=int(number(evaluation, "eval_steps")),
        warmup=max(0, warmup_updates(course, total)),
        schedule=course,
        rule=StopRule(patience=int(number(evaluation, "early_stopping_patience")), threshold=number(evaluation, "early_stopping_threshold")),
        ended=_ended(record.events, int(number(last, "update")), total),
        dropped=dropped,
    )


def rising_since(points: Sequence[tuple[int, float]]) -> int | None:
    """The best update when the losses since then rise beyond their noise, or for three evaluations in a row; None where they don't.

    The noise is what second differences leave of a smooth curve: their mean square is 6 variances. Of n points of pure noise the lowest lies some sqrt(2 ln n)
    standard deviations below its neighbours, which is no rise; two more are asked for, of each of the last two points.
    """
    losses = [loss for _, loss in points]
    if len(losses) < 3:
        return None
    best = losses.index(min(losses))
    since = losses[best:]
    if len(since) > RISES_IN_A_ROW and all(now < then for now, then in zip(since[-1 - RISES_IN_A_ROW :], since[-RISES_IN_A_ROW:], strict=False)):
        return points[best][0]
    if len(since) < 3 or len(losses) < 4:
        return None
    seconds = [losses[at] - 2 * losses[at + 1] + losses[at + 2] for at in range(len(losses) - 2)]
    noise = math.sqrt(fmean(each * each for each in seconds) / 6)
    bar = since[0] + (2 + math.sqrt(2 * math.log(len(losses)))) * noise
    return points[best][0] if min(since[-2:]) > bar else None


def _section(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = spec.get(name)
    return found if isinstance(found, dict) else {}


def _course(raw: Mapping[str, Any]) -> ScheduleSection:
    """The schedule; what is of no use in it, as in a damaged file, is as if it had not been given."""
    known = {each.name: raw.get(each.name) for each in dataclasses.fields(ScheduleSection)}
    fit: dict[str, Any] = {name: value for name, value in known.items() if _is_fit(name, value)}
    return ScheduleSection(**fit)


def _is_fit(name: str, value: Any) -> bool:
    if name.endswith("_type"):
        return isinstance(value, str)
    if name.endswith("_steps"):
        return type(value) is int
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _points(events: Iterable[Mapping[str, Any]], metric: str) -> tuple[tuple[tuple[int, float], ...], int]:
    """(update, the metric) of each evaluation, made again or not, and how many have no finite one. A set's loss is the mean over its adapters."""
    by_update: dict[int, dict[str, float | None]] = {}
    wanted = metric.removesuffix("/loss") if metric != "loss" else ""
    for event in events:
        update, name = event.get("update"), event.get("set")
        if event.get("event") != "evaluation" or type(update) is not int or not isinstance(name, str):
            continue
        wanted = wanted or name.partition("/")[0]
        if name.partition("/")[0] == wanted or name == wanted:
            loss = number(event, "loss", math.nan)
            by_update.setdefault(update, {})[name] = loss if math.isfinite(loss) else None
    means = {update: None if None in losses.values() else fmean(each for each in losses.values() if each is not None) for update, losses in by_update.items()}
    found = tuple((update, mean) for update, mean in sorted(means.items()) if mean is not None)
    return found, len(means) - len(found)


def _ended(events: Sequence[Mapping[str, Any]], done: int, total: int) -> str:
    if done >= total:
        return f"all {total} updates are done"
    for event in reversed(events):
        if event.get("event") == "early_stop":
            return f"early stopping has ended the run after update {int(number(event, 'update'))} of {total}"
        if event.get("event") == "loop_start":
            # What ended an attempt before it is over: a run that is resumed with more patience goes on.
            break
    # Of data that have ended at the same update once more nothing is told.
    if any(event.get("event") == "data_end" and number(event, "update") >= done for event in events):
        return f"its data have ended after update {done} of {total}"
    return ""
