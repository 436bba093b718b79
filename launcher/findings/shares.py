"""Where the time of a run went: shares of its phases over the updates that count, and of each rank's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftcore.spec.run_record import Line, covered, late_phase, number, summed_phases
from launcher.findings.finding import Evidence
from launcher.findings.seen import Seen, middle


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Seconds of the steady updates, as a mean over the ranks."""

    updates: int
    """Updates that they cover."""
    seconds: float
    phases: dict[str, float]
    """By PHASES."""
    measured: bool
    """Whether the phases were measured; else only what each update told of itself: data_wait, forward, backward and optimizer with their waits in them."""

    def share(self, *names: str) -> float:
        """Of the time, of some phases together."""
        return sum(self.phases.get(name, 0.0) for name in names) / self.seconds if self.seconds > 0 else 0.0

    def an_update(self, *names: str) -> float:
        """Seconds an update, of some phases together; all of it without names."""
        return (sum(self.phases.get(name, 0.0) for name in names) if names else self.seconds) / max(1, self.updates)


def shares(seen: Seen) -> Shares:
    """The shares of a run's newest attempt that trained, without its first updates."""
    return shares_of(seen.steady())


def shares_of(lines: Sequence[Line]) -> Shares:
    """The shares of some lines of metrics.jsonl, or of a rank's file."""
    timed = [line for line in lines if isinstance(line.get("phases"), dict) and number(line, "phase_seconds") > 0]
    if timed:
        updates = sum(int(number(line, "phase_updates", 1)) for line in timed)
        return Shares(updates=updates, seconds=sum(number(line, "phase_seconds") for line in timed), phases=summed_phases(timed), measured=True)
    return Shares(updates=len(lines), seconds=sum(number(line, "seconds") for line in lines), phases=summed_phases(lines), measured=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """How much one rank made the others wait."""

    rank: int
    idle_share: float
    """Mean wait of another rank for it, over the time."""
    late_phase: str
    """The phase in which it came late most of the time."""
    cost_share: float
    """Its planned cost over the ranks' mean; 1: it was dealt as much as the others. 0: not recorded."""
    compute_share: float
    """Its seconds of forward and backward over the ranks' mean; 0: not recorded."""


def lateness(seen: Seen) -> list[Lateness]:
    """Of each rank that made others wait, the worst first; empty where phases were not measured or there is one rank."""
    lines = {rank: seen.steady_of(rank) for rank in seen.record.ranks}
    lines = {rank: each for rank, each in lines.items() if any("caused_idle_seconds" in line for line in each)}
    if len(lines) < 2:
        return []
    costs, computed = ({rank: _sum(each, key) for rank, each in lines.items()} for key in ("cost", "compute"))
    found = []
    for rank, each in lines.items():
        seconds = sum(number(line, "phase_seconds") for line in each)
        caused = sum(number(line, "caused_idle_seconds") for line in each)
        if seconds > 0 and caused > 0:
            late = late_phase(each)
            share = caused / (len(lines) - 1) / seconds
            found.append(Lateness(rank=rank, idle_share=share, late_phase=late, cost_share=_over_mean(costs, rank), compute_share=_over_mean(computed, rank)))
    return sorted(found, key=lambda each: -each.idle_share)


def _sum(lines: Sequence[Line], key: str) -> float:
    if key == "compute":
        return sum(number(line["phases"], "forward") + number(line["phases"], "backward") for line in lines if isinstance(line.get("phases"), dict))
    return sum(number(line, key) for line in lines)


def _over_mean(values: dict[int, float], rank: int) -> float:
    mean = sum(values.values()) / len(values)
    return values[rank] / mean if mean > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds of an update, measured and planned."""

    measured_s: float
    planned_s: float
    """Of an update with as many tokens as the run's have."""
    tokens: float
    planned_tokens: float
    """Of an update; 0: the forecast does not say."""

    @property
    def is_corrected(self) -> bool:
        """Whether the plan thought of clearly larger or smaller updates, whose lengths it had to assume."""
        return self.planned_tokens > 0 and not 0.9 < self.tokens / self.planned_tokens < 1.1


def speed(seen: Seen) -> Speed | None:
    """The median update beside the forecast of memory.json, whose computing is scaled to the tokens that updates hold; None where either is missing."""
    found = (seen.record.memory or {}).get("forecast")
    forecast = found if isinstance(found, dict) else {}
    planned, planned_tokens = number(forecast, "update_s"), number(forecast, "tokens_an_update")
    parts = [part for line in seen.steady() if (part := covered(line)).updates]
    measured, tokens = middle(part.train_s / part.updates for part in parts), middle(part.tokens / part.updates for part in parts)
    if planned <= 0 or measured <= 0:
        return None
    if planned_tokens > 0 and tokens > 0:
        planned += (number(forecast, "compute_s") + number(forecast, "memory_s")) * (tokens / planned_tokens - 1)
    return Speed(measured_s=measured, planned_s=planned, tokens=tokens, planned_tokens=planned_tokens if tokens > 0 else 0.0)


def evidence(found: Shares, phase: str) -> Evidence:
    """What was measured of a phase."""
    what = f"{found.phases.get(phase, 0.0):.3g} of {found.seconds:.3g} s over {found.updates} updates"
    return Evidence(what=what, file="metrics.jsonl")
