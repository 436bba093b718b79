"""Curves fit to be drawn: numbers out of lines, many points thinned with what each stands for, and smoothed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftcore.spec.recorded import MOST
from ftcore.spec.run_record import Line, covered

MOST_POINTS = 360
"""Of a drawn curve: about one for each pixel of a chart, more would not be seen."""
LEAST_SMOOTHED = 12
LEAST_CAPPED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points by x. With `low` and `high`, each point stands for several: their mean, smallest and largest."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is no point to be seen."""
        return not any(math.isfinite(value) for value in self.y)


def as_number(value: Any) -> float:
    """A number of a line; NaN and infinities may stand there as text, and anything else counts as NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return found if not abs(found) > MOST else math.copysign(math.inf, found)


def column(lines: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    """One number a line."""
    return [as_number(line.get(key)) for line in lines]


def updates_of(lines: Sequence[Line]) -> list[float]:
    """x by update."""
    return column(lines, "update")


def tokens_of(lines: Sequence[Line]) -> list[float]:
    """x by supervised tokens trained on so far."""
    return _running(lines, lambda line: float(covered(line).supervised_tokens))


def seconds_of(lines: Sequence[Line]) -> list[float]:
    """x by seconds in the training loop so far, evaluations and checkpoints included, the time between attempts not."""
    return _running(lines, lambda line: covered(line).wall_s)


def _running(lines: Sequence[Line], of: Callable[[Line], float]) -> list[float]:
    total, found = 0.0, []
    for line in lines:
        total += of(line)
        found.append(total)
    return found


def thinned(x: Sequence[float], y: Sequence[float], most: int = MOST_POINTS) -> Curve:
    """All points where they are few; else groups of neighbours, none of whose extremes is lost: each with its mean, smallest and largest value."""
    if len(x) <= most:
        return Curve(x=tuple(x), y=tuple(y))
    bounds = [len(x) * number // most for number in range(most + 1)]
    groups = [(x[start:end], [value for value in y[start:end] if math.isfinite(value)]) for start, end in itertools.pairwise(bounds)]
    return Curve(
        x=tuple(sum(places) / len(places) for places, _ in groups),
        y=tuple(sum(values) / len(values) if values else math.nan for _, values in groups),
        low=tuple(min(values, default=math.nan) for _, values in groups),
        high=tuple(max(values, default=math.nan) for _, values in groups),
    )


def smoothing_span(points: int) -> int:
    """Over how many points a curve of so many is smoothed, an odd number; 0: too few to."""
    return 0 if points < LEAST_SMOOTHED else max(5, points // 20) | 1


def smoothed(y: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Each point's weighted mean with its neighbours, as many before it as after it, so that the curve neither lags nor leads; at the ends of fewer.

    Values that are not finite, and those without a weight, are left out.
    """
    half = smoothing_span(len(y)) // 2
    counted = [math.isfinite(value) and math.isfinite(weight) and weight > 0 for value, weight in zip(y, weights, strict=True)]
    below = [0.0, *itertools.accumulate(weight if is_counted else 0.0 for weight, is_counted in zip(weights, counted, strict=True))]
    above = [0.0, *itertools.accumulate(value * weight if is_counted else 0.0 for value, weight, is_counted in zip(y, weights, counted, strict=True))]
    found = []
    for place in range(len(y)):
        reach = min(half, place, len(y) - 1 - place)
        start, end = place - reach, place + reach + 1
        weight = below[end] - below[start]
        found.append((above[end] - above[start]) / weight if weight > 0 else math.nan)
    return found


def cap_of(values: Iterable[float]) -> float:
    """Above it lie a few values so far from all others that a drawing of them would show nothing else; infinity where there are none.

    It is one and a half times the range from the 5th to the 95th percentile above that range.
    """
    finite = sorted(value for value in values if math.isfinite(value))
    if len(finite) < LEAST_CAPPED:
        return math.inf
    low, high = finite[len(finite) // 20], finite[-1 - len(finite) // 20]
    cap = high + max(1.5 * (high - low), 0.1 * abs(high))
    return cap if finite[-1] > cap else math.inf


def without_peaks(values: Sequence[float]) -> list[float]:
    """The values, with NaN for those above `cap_of` them."""
    cap = cap_of(values)
    return [value if value <= cap else math.nan for value in values]


def sampled(x: Sequence[float], y: Sequence[float], most: int = MOST_POINTS) -> Curve:
    """Evenly chosen points, first and last included; right for what is smooth already."""
    if len(x) <= most:
        return Curve(x=tuple(x), y=tuple(y))
    chosen = [round(number * (len(x) - 1) / (most - 1)) for number in range(most)]
    return Curve(x=tuple(x[place] for place in chosen), y=tuple(y[place] for place in chosen))
