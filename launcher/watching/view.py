"""What is shown of a run at one moment: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.watching.curve import Curve

OVER = ("finished", "failed", "stopped", "preempted")
"""States after which nothing comes any more by itself."""


WORTH_A_WORD = 0.02
"""Share of the time that the others wait for one rank."""
OUTSTANDING = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank over its last logged updates."""

    rank: int
    host: str
    phases: Mapping[str, float]
    """Share of the time by phase; they sum to 1. Empty: nothing is known."""
    caused_idle: float
    """What each other rank waited for this one, as a share of the time."""
    late_phase: str
    memory_bytes: int | None
    update: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An event worth a line."""

    time: float
    text: str
    tone: str = ""
    """Empty, good, warn or wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A run. None or empty: not known (yet)."""

    name: str
    state: str
    """As `ftlaunch status` calls it, or `preparing`."""
    why: str = ""
    stage: str = ""
    """What a run that is running does beside training."""
    attempt: int = 0
    world_size: int = 0
    hosts: int = 0
    elapsed_s: float | None = None
    """Since the newest launch began, or of the launch that ended."""
    left_s: float | None = None
    silent_s: float | None = None
    """Since the last logged update, of a run that is running."""
    line: Mapping[str, Any] = field(default_factory=dict)
    """The newest line of metrics.jsonl."""
    losses: Curve = field(default_factory=Curve)
    ranks: tuple[RankView, ...] = ()
    checkpoint: str = ""
    evaluations: tuple[str, ...] = ()
    """A line a set, the newest scores."""
    notices: tuple[Notice, ...] = ()
    """The newest last."""
    last_error: str = ""
    slow_ranks: frozenset[int] = frozenset()
    """Those that a finding of this launch names."""

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def slowest(self) -> RankView | None:
        """The rank that the others wait for, where it stands out: twice as much as for any other."""
        first, second = [*sorted(self.ranks, key=lambda each: -each.caused_idle)[:2], None, None][:2]
        if first is None or second is None or first.caused_idle < WORTH_A_WORD or first.caused_idle < OUTSTANDING * second.caused_idle:
            return None
        return first
