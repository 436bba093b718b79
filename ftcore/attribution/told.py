"""What the ranks know of a stretch of updates once they have told each other: where each one's time went, and who made the others wait."""

from __future__ import annotations

from dataclasses import dataclass

from ftcore.spec.run_lines import PHASES


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPhases:
    """One rank's time since the end of the last logged update, or since the loop began."""

    rank: int
    host: str
    phases: dict[str, float]
    """Seconds by PHASES; their sum is `phase_seconds`."""
    phase_seconds: float
    caused_idle_seconds: float
    """What the other ranks together waited for this one."""
    late_phase: str
    """What this rank was at when it came late; empty when nobody waited for it."""
    caused_by_phase: dict[str, float]
    """`caused_idle_seconds`, by what the rank was at; phases that made nobody wait are missing."""
    held_up: dict[str, float]
    """What of its phases outside of collectives it stood still, since its host had no processor free for it; on an accelerator 0."""
    cost: float
    """Planned cost of its micro-steps (ftcore.batch.cost): 1 is a token's matrix products."""

    def to_record(self, phase_updates: int) -> dict[str, object]:
        """Its fields in metrics/rank_R.jsonl, beside host and rank."""
        return {
            "phase_updates": phase_updates,
            "phase_seconds": self.phase_seconds,
            "phases": self.phases,
            "caused_idle_seconds": self.caused_idle_seconds,
            "late_phase": self.late_phase,
            "held_up_seconds": sum(self.held_up.values()),
            "cost": self.cost,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowest:
    """The rank that the others waited for most."""

    rank: int
    host: str
    phase: str
    share: float
    """Mean wait of another rank for it, over the seconds of the stretch."""

    def to_record(self) -> dict[str, object]:
        """The field `slowest` of metrics.jsonl."""
        return {"rank": self.rank, "host": self.host, "phase": self.phase, "share": self.share}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldPhases:
    """All ranks' time, the same on every rank."""

    ranks: tuple[RankPhases, ...]
    """In rank order."""
    updates: int
    """Updates since the last time."""

    @property
    def phases(self) -> dict[str, float]:
        """Means over the ranks, seconds by PHASES."""
        return {name: sum(each.phases[name] for each in self.ranks) / len(self.ranks) for name in PHASES}

    @property
    def phase_seconds(self) -> float:
        """Mean over the ranks, which end within a collective of each other."""
        return sum(each.phase_seconds for each in self.ranks) / len(self.ranks)

    @property
    def slowest(self) -> Slowest | None:
        """None where no rank waited for another."""
        if len(self.ranks) < 2:
            return None
        late = max(self.ranks, key=lambda each: each.caused_idle_seconds)
        seconds = self.phase_seconds
        if late.caused_idle_seconds <= 0 or seconds <= 0:
            return None
        share = late.caused_idle_seconds / (len(self.ranks) - 1) / seconds
        return Slowest(rank=late.rank, host=late.host, phase=late.late_phase, share=share)

    def to_record(self) -> dict[str, object]:
        """Its fields in metrics.jsonl."""
        slowest = self.slowest
        return {
            "phase_updates": self.updates,
            "phase_seconds": self.phase_seconds,
            "phases": self.phases,
            "slowest": None if slowest is None else slowest.to_record(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one exchange at a logged update brought, in one collective."""

    sums: list[float]
    """Sums over the ranks of the values that each gave, in float64 and in rank order."""
    phases: ToldPhases | None
    """None with logging.phases false."""
