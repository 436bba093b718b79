"""One simulated point of a spec, for whoever needs a speed that nobody has measured."""

from __future__ import annotations

from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.accelerators import Accelerator
from launcher.memory.cost import run_data
from launcher.memory.shape import ModelShape
from launcher.simulation.point import SimulatedPoint
from launcher.simulation.points import point_of
from launcher.simulation.setting import GPUS_PER_NODE, Setting


def simulate(resolved: ResolvedSpec, shape: ModelShape, accelerator: Accelerator, ranks: int, gpus_per_node: int = GPUS_PER_NODE) -> SimulatedPoint:
    """The run on `ranks` ranks of `accelerator`, otherwise as its spec has it; its speedup is its ranks, for there is nothing to set it against."""
    setting = Setting(resolved=resolved, shape=shape, accelerator=accelerator, data=run_data(resolved), gpus_per_node=gpus_per_node)
    return point_of(setting, ranks, resolved.spec.zero.stage)
