"""A simulated point of a scaling test, and a whole simulation."""

from __future__ import annotations

from dataclasses import dataclass

PHASES = ("compute", "launch", "communication", "idle", "offload")
"""What an update's seconds are made of; `idle`: waiting for the rank with the dearest samples; `communication`: what no computing hides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a point can be held in memory."""

    device_bytes: int
    """Of the heaviest rank, by the ledger."""
    room_bytes: int | None
    """What a rank can have; None: not known."""
    fits: bool | None
    lacks: str
    """What is short, in words; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPoint:
    """One number of ranks with one ZeRO stage."""

    ranks: int
    nodes: int
    stage: int
    samples: float
    """Of an update, over all ranks."""
    tokens: float
    """Of an update, over all ranks."""
    micro_steps: float
    """Of an update, on each rank, on average."""
    update_seconds: float
    low_s: float
    """Lower end of the band around update_seconds (see launcher.simulation.uncertainty)."""
    high_s: float
    tokens_per_s: float
    supervised_tokens_per_s: float
    speedup: float
    """Of tokens/s over the reference point, times the reference point's ranks: 8 ranks that reach what 8 alone would give count 8."""
    efficiency: float
    """speedup / ranks."""
    mfu: float
    """Model FLOPs over the data sheet's, in training's precision."""
    phases: dict[str, float]
    """PHASES -> seconds; they add up to update_seconds."""
    limiting: str
    """What takes most beside computing, in words."""
    fit: Fit
    updates: int
    """Of the whole run."""
    total_s: float
    """Training and evaluations of the whole run."""
    device_hours: float
    """Of the whole run."""
    price: float | None
    """Of the whole run; None: no price is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """All points, and what they were counted with."""

    origin: str
    """Which spec."""
    model: str
    method: str
    mode: str
    """strong: the update stays; weak: its samples grow with the ranks."""
    accelerator: str
    network: str
    gpus_per_node: int
    anchor: str
    """What the speed was tied to, in words."""
    deal: str
    """Whose lengths were dealt, in words."""
    band: str
    """How the band comes about, in words."""
    currency: str
    points: tuple[SimulatedPoint, ...]
    notes: tuple[str, ...]
    """What was assumed."""
