"""Watches for a rank that takes longer for its own work again and again, so that the others wait for it, and says what makes it slow.

A rank's own work is its time outside of collectives, without what it was held up for want of a processor: on a host that is shared, ranks are held up by
turns, and more than most slow ranks are slow. Training, checkpoints and evaluations are watched apart, so that a rank that is slow in one of them alone is
found there. benchmarks/slow_rank.py measures how often a planted one is named; in docs/phases.md is what it found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ftcore.attribution.told import RankPhases, ToldPhases
from ftcore.diagnostics.curve import median
from ftcore.diagnostics.findings import Cause, Finding
from ftcore.diagnostics.standing_out import ahead_of_others, standing_out

SKIPPED = 2
"""Stretches at the start, in which ranks make what they keep: DeepSpeed's traces, optimizer state, caches."""
WINDOW = 20
"""Stretches a judgement looks at."""
CLEARLY = 2.0
"""Times what the told phase costs, for another phase to be news."""
STILL = 0.75
"""Share of the sights in which a named rank must be slower still, for the finding to last."""
EXPLAINED = 0.5
"""Share of what a rank computes longer that its cost must explain for the data to be the cause."""
COMPUTING = ("forward", "backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a run that is watched by itself."""

    phases: tuple[str, ...]
    fewest: int
    """Stretches before the first judgement."""
    least_share: float
    """Of its time that a slow rank must cost to be worth telling."""
    least_s: float
    """Seconds of it each time: rank 0 writes the logs, and commits each checkpoint for all."""


PARTS = (
    Part(phases=("data_wait", "forward", "backward", "optimizer", "other"), fewest=8, least_share=0.08, least_s=0.002),
    Part(phases=("checkpoint",), fewest=4, least_share=0.25, least_s=0.15),
    Part(phases=("evaluation",), fewest=4, least_share=0.15, least_s=0.01),
)
ADVICE = {
    "data_wait": "its data come late: look at its host's disk and processors, or raise data.prefetch_updates",
    "checkpoint": "its part of a checkpoint takes longer to hand over: look at its host's disk and memory",
    "evaluation": "its share of the rows takes longer: look at its host's clocks, heat, and what else runs there",
    "other": "it is held up outside of the model: look at what else its process does, and at its host",
}
CAUSES = {"other": "process"}


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
        self._sights = [deque[ToldPhases](maxlen=WINDOW) for _ in PARTS]
        self._ahead = [deque[list[float]](maxlen=WINDOW) for _ in PARTS]
        """By part and sight, by how much each rank's own work took longer than that of the others."""
        self._named: list[Named | None] = [None for _ in PARTS]

    def feed(self, update: int, told: ToldPhases) -> list[Finding]:
        """New findings of the stretch that ended with this update (from 1), none most of the time."""
        self._seen += 1
        found = []
        for place, part in enumerate(PARTS):
            if len(told.ranks) > 1 and self._is_sight(part, told):
                self._sights[place].append(told)
                self._ahead[place].append(ahead_of_others([_own(rank, part.phases) for rank in told.ranks]))
                found.append(self._judge(place, update))
        return [finding for finding in found if finding is not None]

    def _is_sight(self, part: Part, told: ToldPhases) -> bool:
        """Whether the stretch has anything of this part: a stretch without a checkpoint still looks for one, in microseconds."""
        spent = median([sum(rank.phases[phase] for phase in part.phases) for rank in told.ranks])
        return spent > part.least_s / 10 and (told.updates == 0 or self._seen > SKIPPED or len(part.phases) == 1)

    def _judge(self, place: int, update: int) -> Finding | None:
        part, sights, before = PARTS[place], list(self._sights[place]), self._named[place]
        ahead = list(self._ahead[place])
        usual = median([_own(told.ranks[0], part.phases) - each[0] for told, each in zip(sights, ahead, strict=True)])
        slow = standing_out(ahead, least=max(part.least_s, part.least_share * usual), fewest=part.fewest)
        if not slow:
            # Not at the first doubt: a rank at the limit would be told again and again.
            still = before is not None and sum(each[before.rank] > 0 for each in ahead) > STILL * len(ahead)
            self._named[place] = before if still else None
            return None
        rank = before.rank if before is not None and before.rank in slow else slow[0]
        named, cause = _name(part, sights, rank, before)
        self._named[place] = named
        later = median([each[rank] for each in ahead])
        return None if named == before else _finding(part, update, sights, later, (named, cause))


def _own(rank: RankPhases, phases: Sequence[str]) -> float:
    """Seconds of a rank's own work."""
    return sum(rank.phases[phase] - rank.held_up[phase] for phase in phases)


def _name(part: Part, sights: Sequence[ToldPhases], rank: int, before: Named | None) -> tuple[Named, Cause]:
    more = {phase: median([ahead_of_others([_own(each, (phase,)) for each in told.ranks])[rank] for told in sights]) for phase in part.phases}
    phase = max(more, key=more.__getitem__)
    if before is not None and before.rank == rank and more[phase] < CLEARLY * more[before.phase]:
        phase = before.phase
    cause = _cause(phase, sights, rank)
    return Named(rank, phase, cause.name), cause


def _cause(phase: str, sights: Sequence[ToldPhases], rank: int) -> Cause:
    if phase in ADVICE:
        return Cause(name=CAUSES.get(phase, phase), suspected=True, what=ADVICE[phase])
    cost = _ratio([[each.cost for each in told.ranks] for told in sights], rank)
    longer = _ratio([[_own(each, COMPUTING if phase in COMPUTING else (phase,)) for each in told.ranks] for told in sights], rank)
    what = f"it was dealt {cost:.2f} times the others' cost and takes {longer:.2f} times as long"
    if phase in COMPUTING and cost - 1 >= EXPLAINED * (longer - 1):
        return Cause(name="data", suspected=True, what=f"{what}: raise batch.global_batch_size, so that the deal evens out")
    return Cause(name="device", suspected=True, what=f"{what}: look at its host's clocks, heat, and what else runs there")


def _ratio(values: Sequence[Sequence[float]], rank: int) -> float:
    """A rank's value over the median of the others', of sums over the sights."""
    totals = [sum(each) for each in zip(*values, strict=True)]
    others = median(totals[:rank] + totals[rank + 1 :])
    return totals[rank] / others if others > 0 else 1.0


def _finding(part: Part, update: int, sights: Sequence[ToldPhases], later: float, found: tuple[Named, Cause]) -> Finding:
    """`later`: seconds that the rank takes longer each time."""
    named, cause = found
    ranks = [told.ranks[named.rank] for told in sights]
    others = len(sights[0].ranks) - 1
    waited = sum(lost for rank in ranks for phase, lost in rank.caused_by_phase.items() if phase in part.phases) / others
    seconds = sum(rank.phase_seconds for rank in ranks)
    host, share = ranks[-1].host, waited / seconds
    what = f"rank {named.rank} on {host} is slow in {named.phase}: {1e3 * later:.3g} ms longer than the others each time (of {len(sights)})"
    facts = {"rank": named.rank, "host": host, "phase": named.phase, "share": share, "cause": named.cause}
    return Finding(kind="slow_rank", update=update, what=f"{what}, who wait {share:.0%} of the time for it", causes=(cause,), facts=facts)
