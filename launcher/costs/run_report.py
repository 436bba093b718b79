"""What `ftlaunch cost RUN` tells: the run's cost so far, the rest, and where its evaluation loss is going."""

from __future__ import annotations

import dataclasses
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.errors import CheckpointError
from ftcore.spec.evaluation_forecast import ENDED, EvaluationForecast, forecast
from ftcore.spec.run_cost import RunCost, priced, run_cost
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_record import read_run
from launcher.costs.plan_facts import COST_SCHEMA, finite
from launcher.costs.prices import Given, check_given
from launcher.inspect.report import find_runs, look
from launcher.inspect.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A run's cost, with what its evaluations say."""

    run: str
    state: str
    """As `ftlaunch status` calls it."""
    cost: RunCost
    forecast: EvaluationForecast | None
    """None: nothing is evaluated, or not yet."""
    saved_by_stopping: float | None
    """What stopping now would save: the rest's cost; None without a price or a rest."""


def report_run(folder: Path, *, gain: float | None, price: float | None, currency: str | None, now: float) -> RunReport:
    """Raises CheckpointError when the folder holds no run, SpecError for a price, a currency or a gain that is none."""
    check_given(Given(price=price, currency=currency), gain)
    if not os.path.lexists(RunDir(folder).resolved):
        # Says what else a folder may be.
        runs = find_runs(folder)
        first = shlex.quote(str(folder / runs[0].path.name))
        raise CheckpointError(
            f"{folder} holds {len(runs)} run{'s' if len(runs) > 1 else ''}, each with costs of its own",
            where=str(folder),
            fix=f"name one of them: ftlaunch cost {first}",
        )
    record = priced(read_run(folder, with_ranks=False), price, currency)
    seen = look(record.run_dir)
    found = forecast(record, gain)
    is_over = seen.state == State.FINISHED or (found is not None and found.state == ENDED)
    cost = run_cost(record, now=now, is_over=is_over)
    return RunReport(run=seen.run, state=seen.state, cost=cost, forecast=found, saved_by_stopping=cost.rest.cost if cost.rest is not None else None)


def report_facts(report: RunReport) -> dict[str, Any]:
    """Everything as JSON-ready values; times in seconds, `ends_at` since the epoch."""
    facts: dict[str, Any] = finite({"schema": COST_SCHEMA, "kind": "run", **dataclasses.asdict(report)})
    return facts
