"""What the points of a simulation share."""

from __future__ import annotations

from dataclasses import dataclass, field

from ftcore.spec.deals import Dealt
from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.accelerators import Accelerator
from launcher.memory.cost import RunData
from launcher.memory.shape import ModelShape
from launcher.simulation.anchor import Anchor
from launcher.simulation.fabric import Fabric

GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is simulated, and what is known of it."""

    resolved: ResolvedSpec
    """The run as its spec has it; its hosts say nothing here."""
    shape: ModelShape
    accelerator: Accelerator
    data: RunData
    fabric: Fabric | None = None
    """Between hosts; None: what spec.hardware says, else what such accelerators come with."""
    gpus_per_node: int = GPUS_PER_NODE
    mode: str = "strong"
    """strong, or weak: the update's samples grow with the ranks from `base_ranks` on."""
    base_ranks: int = 1
    """Ranks at which the update is the spec's (weak)."""
    cores_per_rank: float | None = None
    """Of a CPU's cores, what a rank keeps busy; None: its ranks share all of them."""
    anchors: tuple[Anchor, ...] = ()
    """Measured speeds; none: the accelerator's data sheet and what training reaches of it."""
    dealt: dict[int, Dealt] = field(default_factory=dict)
    """Ranks -> the real deal of the real lengths, where it was asked for; else it is made from what is known of the lengths."""
