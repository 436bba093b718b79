"""Where an evaluation loss is going, for its chart: the band of what is possible, and a line of words."""

from __future__ import annotations

from ftcore.report.drawing import Series
from ftcore.report.numbers import count, fixed
from ftcore.spec.evaluation_forecast import FORECAST, LEVEL, EvaluationForecast

SURE = f"{LEVEL:.0%}"


def band(found: EvaluationForecast | None, colour: str) -> tuple[Series, ...]:
    """The curve with its band, from the first fitted evaluation to the last update; nothing without a forecast."""
    if found is None or not found.band:
        return ()
    x, middle, low, high = zip(*found.band, strict=True)
    return (Series(name="forecast", x=x, y=middle, low=low, high=high, colour=colour, style="dashed", band=f"{SURE} of the curves"),)


def in_words(found: EvaluationForecast | None) -> str:
    """What is expected, or why nothing is; empty where nothing was evaluated."""
    if found is None:
        return ""
    if found.state != FORECAST or found.final is None:
        return f"No forecast: {found.reason}."
    final = found.final
    end = f"{fixed(final.middle)} ({fixed(final.low)} to {fixed(final.high)}) after update {count(found.total_updates)}, {SURE} sure"
    return f"Forecast of {found.metric}: {end}; {_gain(found)}{_stop(found)}."


def _gain(found: EvaluationForecast) -> str:
    what = f"{found.gain:.2g} an evaluation"
    if found.gain_update is None:
        return f"it gains at least {what} until then"
    span = found.gain_update
    return f"it gains less than {what} from update {count(span.middle)} on ({count(span.low)} to {count(span.high)})"


def _stop(found: EvaluationForecast) -> str:
    if found.stop_chance is None:
        return ""
    where = f", about after update {count(found.stop_update)}" if found.stop_update is not None and found.stop_chance >= 0.5 else ""
    return f"; early stopping ends it before that with a chance of {found.stop_chance:.0%}{where}"
