"""The lines of the ledger, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

PHASES = ("load", "initialise", "backward", "step")
"""What a rank goes through: reading the weights, building the engine, forward and backward of a micro-step, the optimizer's step."""
PLACES = ("device", "host", "nvme", "disk")
SCOPES = ("rank", "node", "run")
GROUPS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "communication", "data", "load", "checkpoint", "process")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Bytes of one kind, in one place."""

    name: str
    """What the table calls it."""
    bytes: int
    """For one rank, node or run, as `scope` says; on the heaviest rank where ranks differ."""
    place: str = "device"
    """device, host, nvme or disk."""
    scope: str = "rank"
    """Whose bytes these are: rank, node or run."""
    group: str
    """One of GROUPS."""
    formula: str
    """How the bytes come about, with the numbers."""
    source: str
    """Where the formula stands: the file of DeepSpeed or torch, or a measurement."""
    phases: tuple[str, ...] = ()
    """The phases in which it is held; empty: in all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What a run takes, item by item."""

    items: tuple[Item, ...]
    device_peak_bytes: int
    """Of the heaviest rank, over all phases; no margin in it."""
    peak_phase: str
    """The phase of that peak."""
    phase_bytes: dict[str, int]
    """Phase -> bytes on the device of the heaviest rank."""
    host_bytes: dict[str, int] = field(default_factory=dict)
    """Host's name -> bytes of its main memory at the worst moment."""
    nvme_bytes: int = 0
    """On the NVMe folder of the node with most ranks."""
    disk_bytes: int = 0
    """In the run folder: the checkpoints kept and one being written, and the exported model."""
    parameters: int
    """Of the whole model, adapters and copies included."""
    trained: int
    """Parameters that are trained."""

    @property
    def frozen(self) -> int:
        """Parameters that are not trained."""
        return self.parameters - self.trained

    def group_bytes(self, group: str, place: str = "device") -> int:
        """Bytes of a group's items in one place, at the phase of the peak."""
        return sum(item.bytes for item in self.items if item.group == group and item.place == place and held_in(item, self.peak_phase))


def held_in(item: Item, phase: str) -> bool:
    """Whether an item is held in a phase."""
    return not item.phases or phase in item.phases


def phase_totals(items: Iterable[Item], place: str = "device", scope: str = "rank") -> dict[str, int]:
    """Phase -> bytes of the items in one place and scope."""
    chosen = [item for item in items if item.place == place and item.scope == scope]
    return {phase: sum(item.bytes for item in chosen if held_in(item, phase)) for phase in PHASES}
