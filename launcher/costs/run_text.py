"""The cost of a run as a terminal shows it."""

from __future__ import annotations

import time

from ftcore.spec.evaluation_forecast import FORECAST, LEVEL, RISING, EvaluationForecast, Interval
from ftcore.spec.run_cost import AttemptCost, RunCost
from launcher.costs.plan_text import money, table, wrapped
from launcher.costs.run_report import RunReport
from launcher.inspect.state import State
from launcher.memory.cost_text import device_hours, rough_time

ATTEMPT_HEAD = ("attempt", "ranks", "time", "start", "device-h", "cost", "updates", "redone", "ended")
RIGHT = {0, 1, 2, 3, 4, 5, 6, 7}
LEAST_CHANCE = 0.05
"""Of an early stop, from which on it is told where."""
MODEL = "a constant plus a power or an exponential, averaged over all such curves that the evaluations leave possible"


def render_report(report: RunReport) -> str:
    """The cost so far, by attempt where there are several, the rest, and what the evaluations say."""
    cost = report.cost
    summed = cost.totals
    is_running = report.state == State.RUNNING
    launches = [_attempt(each, cost.currency, is_running=is_running) for each in cost.attempts]
    attempts = table([ATTEMPT_HEAD, *launches], RIGHT) if len(launches) > 1 else ""
    rows = [
        ("done", f"update {cost.done:,}/{cost.total_updates:,}" if cost.total_updates else "no update is logged yet"),
        ("so far", f"{rough_time(summed.wall_s)}, {device_hours(summed.device_hours)} device-hours" + _cost(summed.cost, cost.currency)),
        ("a million", _per_million(cost)),
        ("energy", f"{cost.energy_kwh:.3g} kWh" if cost.energy_kwh is not None else ""),
        ("lost", _lost(cost)),
        ("downtime", f"{rough_time(cost.downtime_s)} between attempts, which costs nothing here" if cost.downtime_s else ""),
        ("the rest", _rest(cost)),
        *evaluation_rows(report.forecast),
        ("stop now", _stop(report)),
    ]
    head = f"{report.run}: {report.state}"
    no_price = "no price: give --price, or hardware.price_per_hour in the spec" if summed.cost is None else ""
    told = [line for name, text in rows if text for line in wrapped([f"  {name:<11} {text}"], indent=14)]
    lines = [head, *told, *(["", attempts] if attempts else []), *([no_price] if no_price else [])]
    return "\n".join(lines)


def evaluation_rows(found: EvaluationForecast | None) -> list[tuple[str, str]]:
    """(name, text) of what the evaluations so far say; what is no forecast says why."""
    if found is None:
        return []
    best = f"best {found.best_loss:.4f} after update {found.best_update}"
    rows = [("evaluation", f"{found.metric} {found.newest_loss:.4f} after update {found.points[-1][0]}, {best}")]
    if found.state != FORECAST:
        return [*rows, ("forecast", f"none: {found.reason}")] if found.state != RISING else [*rows, ("forecast", f"none: {found.reason}; {_best(found)}")]
    return [
        *rows,
        ("forecast", f"{_interval(found.final)} at the end, {LEVEL:.0%} sure; evaluations scatter by {found.noise or 0:.2g}"),
        ("", f"from {found.fitted} evaluations: {MODEL}"),
        ("gains", _gains(found)),
        ("early stop", _chance(found)),
        *(("", note) for note in found.notes),
    ]


def _best(found: EvaluationForecast) -> str:
    left = found.patience - found.without_gain
    stops = f"; early stopping ends the run after {left} more without a gain" if found.patience and left > 0 else ""
    return f"stop, and export the best checkpoint if it is kept (checkpoint.metric_for_best_model, --best){stops}"


def _gains(found: EvaluationForecast) -> str:
    what = f"{found.gain:.2g} ({found.gain_origin})"
    if found.gain_update is None:
        return f"no evaluation before the end gains less than {what}, as far as can be told"
    span = found.gain_update
    return f"less than {what} an evaluation after update {span.middle:,.0f} ({span.low:,.0f} to {span.high:,.0f})"


def _chance(found: EvaluationForecast) -> str:
    if found.stop_chance is None:
        return "off (evaluation.early_stopping_patience: 0)"
    where = f", about after update {found.stop_update:,.0f}" if found.stop_update is not None and found.stop_chance >= LEAST_CHANCE else ""
    count = f"{found.without_gain} of {found.patience} evaluations without a gain so far"
    return f"{found.stop_chance:.0%} that it ends the run before update {found.total_updates:,}{where}; {count}"


def _interval(span: Interval | None) -> str:
    return f"{span.middle:.4f} ({span.low:.4f} to {span.high:.4f})" if span is not None else ""


def _stop(report: RunReport) -> str:
    """What stopping now saves and gives up."""
    rest, found = report.cost.rest, report.forecast
    if rest is None:
        return ""
    saves = f"saves {rough_time(rest.seconds)}" + (
        f" and {money(report.saved_by_stopping, report.cost.currency)}" if report.saved_by_stopping is not None else ""
    )
    if found is not None and found.fall_to_come is not None:
        return f"{saves}, and gives up a fall of the loss by {_interval(found.fall_to_come)}"
    if found is not None and found.state == RISING:
        return f"{saves}, and gives up nothing: the loss rises"
    return f"{saves}; what it gives up can't be told"


def _cost(amount: float | None, currency: str) -> str:
    return "" if amount is None else f", {money(amount, currency)}"


def _per_million(cost: RunCost) -> str:
    each = cost.totals.cost_per_million_supervised
    tokens = f"{cost.totals.supervised_tokens:,} supervised tokens"
    return "" if each is None else f"{money(each, cost.currency)} a million supervised tokens ({tokens})"


def _lost(cost: RunCost) -> str:
    twice = cost.totals.redone_updates
    if not twice:
        return ""
    return f"{twice:,} update{'s' if twice > 1 else ''} trained twice, {rough_time(cost.lost_s)}" + _cost(cost.lost_cost, cost.currency)


def _rest(cost: RunCost) -> str:
    rest = cost.rest
    if rest is None:
        return ""
    price = ""
    if rest.cost is not None and rest.low_cost is not None and rest.high_cost is not None:
        price = f", {money(rest.cost, cost.currency)} ({money(rest.low_cost, '').strip()} to {money(rest.high_cost, '').strip()})"
    span = f"{rough_time(rest.seconds)} ({rough_time(rest.low_s)} to {rough_time(rest.high_s)})"
    return f"{rest.updates:,} updates on {rest.ranks} rank{'s' if rest.ranks > 1 else ''}: {span}{price}{_ends(rest.ends_at)}"


def _ends(at: float) -> str:
    try:
        return f"; ends {time.strftime('%Y-%m-%d %H:%M', time.localtime(at))} if it goes on now"
    except (OverflowError, OSError):
        # Later than a calendar has years for.
        return ""


def _attempt(each: AttemptCost, currency: str, *, is_running: bool) -> tuple[str, ...]:
    return (
        str(each.number),
        str(each.ranks),
        rough_time(each.wall_s),
        rough_time(each.start_s) if each.start_s is not None else "",
        device_hours(each.device_hours),
        money(each.cost, currency) if each.cost is not None else "",
        f"{each.updates:,}",
        f"{each.redone_updates:,}" if each.redone_updates else "",
        each.how_ended or ("runs" if is_running else "not told"),
    )
