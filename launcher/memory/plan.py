"""What `ftlaunch plan` says of a run: the ledger against what there is, the combination's verdict, and time and cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.errors import FtError
from ftcore.spec.resolved import ResolvedSpec
from launcher.compatibility import Verdict, verdict
from launcher.memory.capacity import Capacity, capacity_of
from launcher.memory.config_file import find_config
from launcher.memory.cost import Forecast, time_and_cost
from launcher.memory.fit import Shortage, shortages
from launcher.memory.items import Ledger
from launcher.memory.ledger import build_ledger
from launcher.memory.shape import ModelShape, read_shape


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

    @property
    def fits(self) -> bool | None:
        """Whether everything can be held; None where the accelerator is not known and nothing else is short."""
        if any(each.is_error for each in self.shortages):
            return False
        return True if self.capacity.device_bytes is not None else None


def make_plan(resolved: ResolvedSpec, origin: str, *, gpu: str = "", folder: Path | None = None) -> Plan:
    """The plan of a run in `folder`, or below it, on accelerators called `gpu` (empty: as the spec says, or what this machine has).

    Raises SpecError for an accelerator or a model whose sizes can't be found.
    """
    capacity = capacity_of(resolved, gpu=gpu, folder=folder)
    shape = read_shape(find_config(resolved.spec.model))
    ledger = build_ledger(resolved, shape, on_cpu=capacity.is_shared)
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
    )


def _forecast(resolved: ResolvedSpec, shape: ModelShape, ledger: Ledger, capacity: Capacity) -> tuple[Forecast | None, str]:
    if capacity.accelerator is None:
        return None, f"the accelerator is {capacity.device_origin}"
    try:
        return time_and_cost(resolved, shape, ledger, capacity.accelerator), ""
    except FtError as error:  # data that can't be read yet is no reason to say nothing of memory
        return None, error.problems[0].what
