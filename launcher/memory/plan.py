"""What `ftlaunch plan` says of a run: the ledger against what there is, the combination's verdict, and time and cost."""

from __future__ import annotations

from dataclasses import dataclass

from ftcore.spec.errors import FtError
from ftcore.spec.resolved import ResolvedSpec
from launcher.combinations.verdict import Verdict, verdict
from launcher.memory.capacity import Capacity
from launcher.memory.cost import Forecast, time_and_cost
from launcher.memory.exact_shape import Exact
from launcher.memory.fit import Shortage, shortages
from launcher.memory.items import Ledger
from launcher.memory.ledger import build_ledger
from launcher.memory.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that was found out."""

    resolved: ResolvedSpec
    origin: str
    """Which spec was taken."""
    shape: ModelShape
    ledger: Ledger
    capacity: Capacity
    shortages: tuple[Shortage, ...]
    verdict: Verdict
    forecast: Forecast | None
    """None where the accelerator is not known, or `no_forecast` says why."""
    no_forecast: str = ""
    exact: Exact | None = None
    """Of --exact: the trace, or why there is none."""

    @property
    def fits(self) -> bool | None:
        """Whether everything can be held; None where the accelerator is not known and nothing else is short."""
        if any(each.is_error for each in self.shortages):
            return False
        return True if self.capacity.device_bytes is not None else None


def make_plan(resolved: ResolvedSpec, origin: str, shape: ModelShape, capacity: Capacity, exact: Exact | None = None) -> Plan:
    """The plan of a run on a model of `shape` in the room of `capacity`; `origin` says which spec it is, `exact` what --exact found."""
    ledger = build_ledger(resolved, shape, on_cpu=capacity.is_shared, traced=exact.traced if exact is not None else None)
    forecast, reason = _forecast(resolved, shape, ledger, capacity)
    return Plan(
        resolved=resolved,
        origin=origin,
        shape=shape,
        ledger=ledger,
        capacity=capacity,
        shortages=tuple(shortages(resolved, ledger, capacity)),
        verdict=verdict(resolved.spec),
        forecast=forecast,
        no_forecast=reason,
        exact=exact,
    )


def _forecast(resolved: ResolvedSpec, shape: ModelShape, ledger: Ledger, capacity: Capacity) -> tuple[Forecast | None, str]:
    if capacity.accelerator is None:
        return None, f"the accelerator is {capacity.device_origin}"
    try:
        return time_and_cost(resolved, shape, ledger, capacity.accelerator), ""
    except FtError as error:  # data that can't be read yet is no reason to say nothing of memory
        return None, error.problems[0].what
