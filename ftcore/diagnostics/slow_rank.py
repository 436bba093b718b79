"""Watches for a rank that the others wait for again and again, and says what makes it slow: its data, more work than others, or the device.

Training, checkpoints and evaluations are watched apart, so that a rank that is slow in one of them alone is found there. tests/ranks/test_phases_slow.py and
benchmarks/slow_rank.py hold how often a planted one is named, and a balanced run names nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ftcore.attribution.told import RankPhases, ToldPhases
from ftcore.diagnostics.curve import median
from ftcore.diagnostics.findings import Cause, Finding
from ftcore.diagnostics.standing_out import standing_out

SKIPPED = 2
"""Stretches at the start, in which ranks make what they keep: DeepSpeed's traces, optimizer state, caches."""
WINDOW = 20
"""Stretches a judgement looks at."""
FEWEST = {"training": 8, "checkpoint": 3, "evaluation": 3}
RARE = ("checkpoint", "evaluation")
COMPUTING = ("forward", "backward")
EXPLAINED = 0.5
"""Share of what a rank computes longer that its cost must explain for the data to be the cause."""
ADVICE = {
    "data_wait": "its data come late: look at its host's disk and processors, or raise data.prefetch_updates",
    "checkpoint": "its part of a checkpoint takes longer to hand over: look at its host's disk and memory",
    "evaluation": "its share of the rows takes longer: look at its host's clocks, heat, and what else runs there",
    "other": "it is held up outside of the model: look at what else runs in its process and on its host",
}
CAUSES = {"other": "process"}
CLEARLY = 2.0
"""Times what the told phase costs, for another phase to be news."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One stretch as one part of the run saw it."""

    seconds: float
    """What it took."""
    ranks: tuple[RankPhases, ...]
    waits: tuple[float, ...]
    """By rank, what a mean other rank waited for it."""


@dataclass(frozen=True, slots=True)
class Named:
    """Who was told to be slow, and why."""

    rank: int
    phase: str
    cause: str


class SlowRankWatch:
    """Fed each told stretch; answers with what is new. One finding while it lasts, told again when it changes."""

    def __init__(self) -> None:
        self._seen = 0
        self._sights = {part: deque[Sight](maxlen=WINDOW) for part in FEWEST}
        self._named: dict[str, Named | None] = dict.fromkeys(FEWEST)

    def feed(self, update: int, told: ToldPhases) -> list[Finding]:
        """New findings of the stretch that ended with this update (from 1), none most of the time."""
        self._seen += 1
        if len(told.ranks) < 2:
            return []
        found = [self._judge(part, update) for part in FEWEST if self._look(part, told)]
        return [finding for finding in found if finding is not None]

    def _look(self, part: str, told: ToldPhases) -> bool:
        """Whether there is anything of this part of the run in the stretch."""
        others = len(told.ranks) - 1
        waits = tuple(sum(lost for phase, lost in rank.caused_by_phase.items() if _part_of(phase) == part) / others for rank in told.ranks)
        seconds = median([_seconds(part, rank) for rank in told.ranks]) + (sum(waits) if part in RARE else 0.0)
        if seconds <= 0 or (part not in RARE and self._seen <= SKIPPED):
            return False
        self._sights[part].append(Sight(seconds, told.ranks, waits))
        return True

    def _judge(self, part: str, update: int) -> Finding | None:
        sights = list(self._sights[part])
        rank = standing_out([sight.waits for sight in sights], [sight.seconds for sight in sights], FEWEST[part])
        before = self._named[part]
        if rank is None:
            # Not at the first doubt: a rank at the limit would be told again and again.
            self._named[part] = before if before is not None and _is_still_latest(before.rank, sights) else None
            return None
        lost = _lost_by_phase(part, sights, rank)
        phase = max(lost, key=lost.__getitem__)
        if before is not None and before.rank == rank and lost[phase] < CLEARLY * lost.get(before.phase, 0.0):
            phase = before.phase
        cause = _cause(phase, sights, rank)
        named = Named(rank, phase, cause.name)
        self._named[part] = named
        return None if named == before else _finding(part, update, sights, named, cause)


def _part_of(phase: str) -> str:
    return phase if phase in RARE else "training"


def _seconds(part: str, rank: RankPhases) -> float:
    """What the stretch took of it; of a rare part without waiting, which is not told apart."""
    return rank.phases[part] if part in RARE else rank.phase_seconds - sum(rank.phases[each] for each in RARE)


def _is_still_latest(rank: int, sights: Sequence[Sight]) -> bool:
    return sum(sight.waits[rank] == max(sight.waits) for sight in sights) > len(sights) / 2


def _lost_by_phase(part: str, sights: Sequence[Sight], rank: int) -> dict[str, float]:
    lost: dict[str, float] = {}
    for sight in sights:
        for phase, seconds in sight.ranks[rank].caused_by_phase.items():
            if _part_of(phase) == part:
                lost[phase] = lost.get(phase, 0.0) + seconds
    return lost


def _cause(phase: str, sights: Sequence[Sight], rank: int) -> Cause:
    if phase in ADVICE:
        return Cause(name=CAUSES.get(phase, phase), suspected=True, what=ADVICE[phase])
    cost = _ratio([[each.cost for each in sight.ranks] for sight in sights], rank)
    names = COMPUTING if phase in COMPUTING else (phase,)
    longer = _ratio([[sum(each.phases[name] for name in names) for each in sight.ranks] for sight in sights], rank)
    what = f"it was dealt {cost:.2f} times the others' cost and takes {longer:.2f} times as long"
    if phase in COMPUTING and cost - 1 >= EXPLAINED * (longer - 1):
        return Cause(name="data", suspected=True, what=f"{what}: raise batch.global_batch_size, so that the deal evens out")
    return Cause(name="device", suspected=True, what=f"{what}: look at its host's clocks, heat, and what else runs there")


def _ratio(values: Sequence[Sequence[float]], rank: int) -> float:
    """A rank's value over the median of the others', of sums over the sights."""
    totals = [sum(each) for each in zip(*values, strict=True)]
    others = median(totals[:rank] + totals[rank + 1 :])
    return totals[rank] / others if others > 0 else 1.0


def _finding(part: str, update: int, sights: Sequence[Sight], named: Named, cause: Cause) -> Finding:
    host = sights[-1].ranks[named.rank].host
    waited, seconds = sum(sight.waits[named.rank] for sight in sights), sum(sight.seconds for sight in sights)
    share = waited / seconds
    unit = {"training": "the time between logs", "checkpoint": "the time that saves take", "evaluation": "the time of evaluations"}[part]
    what = f"rank {named.rank} on {host} is slow in {named.phase}: the others wait for it {share:.0%} of {unit}, {1e3 * waited / len(sights):.0f} ms each time"
    facts = {"rank": named.rank, "host": host, "phase": named.phase, "share": share, "cause": named.cause}
    return Finding(kind="slow_rank", update=update, what=f"{what} (last {len(sights)})", causes=(cause,), facts=facts)
