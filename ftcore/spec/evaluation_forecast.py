"""Where a run's evaluation loss will end, from the evaluations so far: with an interval, the chance of an early stop, and what more training still brings."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, TypeVar

from ftcore.spec.evaluation_history import EvaluationHistory, StopRule, evaluation_history, rising_since
from ftcore.spec.learning_rate import LearningClock
from ftcore.spec.run_record import RunRecord
from ftcore.spec.saturating_curve import LEAST_POINTS, Curve, draw_curves, quantile
from ftcore.spec.schedule_lengths import STABLE

LEVEL = 0.9
"""Share of such intervals that hold what they are of."""
DEFAULT_GAIN = 0.001
"""Of the newest loss: what an evaluation has to gain where nobody said."""
DRAWS = 1000
MOST_FITTED = 120
"""Of more evaluations every second, every third, ... is fitted, the newest one among them."""
MOST_PLAYED = 600
"""Evaluations to come that early stopping is played for."""
MOST_GAINS = 200
"""Evaluations to come whose gain is looked at; of more every second, every third, ..."""
BAND_POINTS = 25
"""Updates at which the curve is told for a plot."""

FORECAST, TOO_FEW, RISING, ENDED = "forecast", "too_few", "rising", "ended"


Some = TypeVar("Some")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A number and the interval that holds it with LEVEL's chance."""

    middle: float
    """The median."""
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationForecast:
    """What the evaluations so far say about the rest of a run. Losses are per supervised token."""

    metric: str
    """`loss` or `NAME/loss`, as checkpoint.metric_for_best_model has it."""
    state: str
    """`forecast`; or why there is none: `too_few` evaluations, a loss that is `rising`, a run that has `ended`."""
    reason: str
    """The same for people; empty with a forecast."""
    points: tuple[tuple[int, float], ...]
    """(update, loss) of every evaluation."""
    fitted: int
    """So many of them were fitted: those before training and in the warm-up are of another curve."""
    needed: int
    """Evaluations that are still missing for a forecast."""
    total_updates: int
    best_update: int
    best_loss: float
    newest_loss: float
    final: Interval | None = None
    """The evaluation loss measured after the last update."""
    fall_to_come: Interval | None = None
    """The newest point of the curve less its end: what the updates left would bring, without noise."""
    noise: float | None = None
    """Standard deviation of an evaluation about the curve."""
    gain: float | None = None
    """The gain of one evaluation that is asked about."""
    gain_origin: str = ""
    gain_update: Interval | None = None
    """The evaluation after which the next one gains less than that; None: not before the end."""
    stop_chance: float | None = None
    """That early stopping ends the run before its last update; None: it is off, or there is no forecast."""
    stop_update: float | None = None
    """Where it does, the median of the update."""
    patience: int = 0
    without_gain: int = 0
    """Evaluations in a row without a gain, as early stopping counts them."""
    band: tuple[tuple[int, float, float, float], ...] = ()
    """(update, middle, low, high) of the curve from its first fitted point to the last update."""
    notes: tuple[str, ...] = field(default=())
    """What was assumed."""


def forecast(record: RunRecord, gain: float | None = None) -> EvaluationForecast | None:
    """The forecast of a run; None where it has no evaluation yet, or never evaluates. `gain`: what an evaluation must bring, in loss."""
    history = evaluation_history(record)
    return None if history is None else forecast_history(history, gain)


def forecast_history(history: EvaluationHistory, gain: float | None = None) -> EvaluationForecast:
    """As `forecast`. The same history gives the same numbers: what is drawn is seeded."""
    fitted = _thinned([(update, loss) for update, loss in history.points if update > history.warmup], MOST_FITTED)
    asked, origin = _gain(history, gain)
    known: dict[str, Any] = {
        "metric": history.metric,
        "points": history.points,
        "fitted": len(fitted),
        "needed": max(0, LEAST_POINTS - len(fitted)),
        "total_updates": history.total_updates,
        "best_update": history.best[0],
        "best_loss": history.best[1],
        "newest_loss": history.points[-1][1],
        "gain": asked,
        "gain_origin": origin,
        "patience": history.rule.patience,
        "without_gain": history.rule.after(loss for _, loss in history.points).without_gain,
    }
    state, reason = _no_forecast(history, fitted)
    if state != FORECAST:
        return EvaluationForecast(state=state, reason=reason, notes=_notes(history), **known)
    return EvaluationForecast(state=FORECAST, reason="", **known, **_foreseen(history, fitted, asked))


def _no_forecast(history: EvaluationHistory, fitted: Sequence[tuple[int, float]]) -> tuple[str, str]:
    if history.ended:
        return ENDED, history.ended
    since = rising_since(history.points)
    if since is not None:
        rise = history.points[-1][1] - history.best[1]
        more = f"it has risen by {rise:.4g} since update {since}, which is the best one: the model overfits"
        return RISING, f"{more}; a falling curve would say nothing of its end"
    if len(fitted) < LEAST_POINTS:
        part = "" if len(fitted) == len(history.points) else " after the warm-up"
        more = f"{len(fitted)} evaluation{'s' if len(fitted) != 1 else ''}{part}, {LEAST_POINTS} are needed"
        return TOO_FEW, f"{more}: {LEAST_POINTS - len(fitted)} more{_when(history, LEAST_POINTS - len(fitted))}"
    return FORECAST, ""


def _when(history: EvaluationHistory, more: int) -> str:
    """After which update there are so many more evaluations; words for a spec that does not have them."""
    if history.left < more:
        return f", and the run has only {history.left}: evaluate more often (evaluation.eval_steps)"
    return f", after update {history.coming(more - 1)}"


def _gain(history: EvaluationHistory, gain: float | None) -> tuple[float, str]:
    if gain is not None:
        return gain, "--gain"
    if history.rule.threshold > 0:
        return history.rule.threshold, "evaluation.early_stopping_threshold"
    return DEFAULT_GAIN * abs(history.points[-1][1]), f"{DEFAULT_GAIN:.1%} of the newest loss"


def _foreseen(history: EvaluationHistory, fitted: Sequence[tuple[int, float]], gain: float) -> dict[str, Any]:
    """The fields that the curves decide."""
    last = fitted[-1][0]
    pairs = [(history.coming(place - 1) if place else last, history.coming(place)) for place in _thinned(range(history.left), MOST_GAINS)]
    curves = _curves(history, fitted)
    generator = random.Random(1)
    falls = [curve.at(last) - curve.end for curve in curves]
    chance, when = _stops(history, curves)
    return {
        "final": _interval([max(0.0, curve.end + generator.gauss(0, curve.noise)) for curve in curves]),
        "fall_to_come": _interval(falls),
        "noise": median(curve.noise for curve in curves),
        "gain_update": _falls_under(curves, pairs, gain),
        "stop_chance": chance,
        "stop_update": when,
        "band": _band(curves, fitted[0][0], history.total_updates),
        "notes": _notes(history),
    }


@dataclass(frozen=True, slots=True)
class _Course:
    """A curve by the updates, whatever clock it goes by."""

    curve: Curve
    clock: Callable[[float], float]

    @property
    def end(self) -> float:
        return self.curve.end

    @property
    def noise(self) -> float:
        return self.curve.noise

    def at(self, update: float) -> float:
        return self.curve.at(self.clock(update))


def _curves(history: EvaluationHistory, fitted: Sequence[tuple[int, float]]) -> list[_Course]:
    """What the evaluations leave possible, by each clock alike: nobody knows beforehand whether a loss falls with the updates or with the learning rate."""
    total = history.total_updates
    clocks: list[Callable[[float], float]] = [float]
    if not history.schedule.lr_scheduler_type.startswith("constant"):
        clocks.append(LearningClock(history.schedule, total).at)
    found: list[_Course] = []
    for number, clock in enumerate(clocks):
        drawn = draw_curves([(clock(update), loss) for update, loss in fitted], clock(total), count=DRAWS // len(clocks), seed=number)
        found += [_Course(curve, clock) for curve in drawn]
    return found


def _interval(values: Sequence[float]) -> Interval:
    return Interval(middle=median(values), low=quantile(values, (1 - LEVEL) / 2), high=quantile(values, (1 + LEVEL) / 2))


def _band(curves: Sequence[_Course], first: int, last: int) -> tuple[tuple[int, float, float, float], ...]:
    updates = sorted({round(first + (last - first) * step / (BAND_POINTS - 1)) for step in range(BAND_POINTS)})
    spans = [(update, _interval([curve.at(update) for curve in curves])) for update in updates]
    return tuple((update, span.middle, span.low, span.high) for update, span in spans)


def _falls_under(curves: Sequence[_Course], pairs: Sequence[tuple[int, int]], gain: float) -> Interval | None:
    """The first evaluation after which the next one gains less, over the curves; None where half of them never do. `pairs`: an evaluation and the next."""
    found = [next((float(now) for now, then in pairs if curve.at(now) - curve.at(then) < gain), math.inf) for curve in curves]
    middle = median(found)
    if not math.isfinite(middle):
        return None
    ends = [min(each, float(pairs[-1][1])) for each in found]
    return Interval(middle=middle, low=quantile(ends, (1 - LEVEL) / 2), high=quantile(ends, (1 + LEVEL) / 2))


def _thinned(values: Sequence[Some], most: int) -> list[Some]:
    """Every k-th value, the last one among them, so that they are no more than `most`."""
    step = max(1, -(-len(values) // most))
    return list(values[::-1][::step][::-1])


def _stops(history: EvaluationHistory, curves: Sequence[_Course]) -> tuple[float | None, float | None]:
    """The chance that early stopping ends the run before its last update, and where; by playing each curve to its end, with its noise."""
    if history.rule.patience == 0:
        return None, None
    now = history.rule.after(loss for _, loss in history.points)
    generator, played = random.Random(2), history.due[:MOST_PLAYED]
    found = [_stop_of(now, curve, played, generator) for curve in curves]
    stops = [update for update in found if update is not None]
    return fmean(update is not None for update in found), float(median(stops)) if stops else None


def _stop_of(rule: StopRule, curve: _Course, updates: Sequence[int], generator: random.Random) -> int | None:
    for update in updates:
        rule = rule.after([curve.at(update) + generator.gauss(0, curve.noise)])
        if rule.is_over:
            return update
    return None


def _notes(history: EvaluationHistory) -> tuple[str, ...]:
    notes = []
    kind = history.schedule.lr_scheduler_type
    if kind == STABLE:
        notes.append("the loss mostly falls once more where the learning rate decays at the end, which evaluations before it can't tell")
    if not kind.startswith("constant"):
        notes.append("half of the curves go by updates, half by the sum of the learning rate, which falls towards the end")
    if history.rule.patience and history.left > MOST_PLAYED:
        notes.append(f"the chance of an early stop is that within the next {MOST_PLAYED} evaluations")
    if history.dropped:
        notes.append(f"{history.dropped} evaluations without a finite loss are left out")
    return tuple(notes)
