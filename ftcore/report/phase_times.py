"""Where a run's time went: seconds by phase, of each rank and over time, also of lines written before there were phases."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ftcore.report.numbers import NONE
from ftcore.report.run_view import RunView
from ftcore.spec.run_record import Line, covered, late_phase, number, summed_phases

PHASE_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "communication": "communication",
    "idle": "idle, for a later rank",
    "data_wait": "waiting for data",
    "checkpoint": "checkpoint",
    "evaluation": "evaluation",
    "other": "other",
}
"""Phase -> what it is called; in the order in which they are stacked."""
COMPUTING = ("forward", "backward", "optimizer")
WASTED, CHOSEN = 0.15, 0.4
"""Shares of the time from which a phase counts as what limits a run: one that nobody wants, and evaluations or checkpoints, which somebody asked for."""
_LIMITS = {
    "communication": "communication",
    "idle": "uneven ranks",
    "data_wait": "data",
    "checkpoint": "checkpoints",
    "evaluation": "evaluations",
    "other": "work between the phases",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """A rank's part."""

    rank: int
    host: str
    updates: int
    """That the times are of."""
    seconds: dict[str, float]
    """Phase -> seconds, of those updates together."""
    caused_idle_s: float
    """What the others together waited for it."""
    others_s: float
    """The time of all other ranks in those updates: what `caused_idle_s` is a share of."""
    late_phase: str
    """The phase in whose lateness the others waited longest; empty: nobody waited for it."""


def has_phases(lines: Iterable[Line]) -> bool:
    """Whether any line knows phases."""
    return any(isinstance(line.get("phases"), Mapping) for line in lines)


def rank_times(view: RunView) -> list[RankTimes]:
    """By rank; empty where no rank wrote lines."""
    others = {line["update"]: number(line, "world_size", view.world_size) - 1 for line in view.lines}
    return [_of_rank(rank, lines, others, view.world_size - 1) for rank, lines in view.record.ranks.items() if lines]


def _of_rank(rank: int, lines: list[Line], others: Mapping[int, float], usual: int) -> RankTimes:
    """`others`: update -> how many other ranks there were, since a run may have been resumed on more or fewer; `usual`: where nothing tells."""
    return RankTimes(
        rank=rank,
        host=str(lines[-1].get("host") or ""),
        updates=sum(int(number(line, "phase_updates", 1)) for line in lines),
        seconds=summed_phases(lines),
        caused_idle_s=sum(number(line, "caused_idle_seconds") for line in lines),
        others_s=sum(others.get(line["update"], usual) * covered(line).wall_s for line in lines),
        late_phase=late_phase(lines),
    )


def over_time(lines: Sequence[Line], most: int = 60) -> tuple[list[float], dict[str, list[float]]]:
    """(edges by update, phase -> seconds an update in each bin): neighbouring lines together, at most so many bins."""
    bins = min(most, len(lines))
    bounds = [len(lines) * place // bins for place in range(bins + 1)] if bins else [0]
    edges = [float(lines[0]["update"]) - covered(lines[0]).updates] if lines else []
    found: dict[str, list[float]] = {name: [] for name in PHASE_NAMES}
    for start, end in itertools.pairwise(bounds):
        part = lines[start:end]
        updates = sum(covered(line).updates for line in part) or 1
        seconds = summed_phases(part)
        edges.append(float(part[-1]["update"]))
        for name, values in found.items():
            values.append(seconds[name] / updates)
    return edges, found


def limiting(seconds: Mapping[str, float]) -> tuple[str, str]:
    """(what keeps the run from being faster, in words; its share of the time)."""
    whole = sum(seconds.values())
    if whole <= 0:
        return NONE, ""
    shares = {name: value / whole for name, value in seconds.items()}
    computing = sum(shares[name] for name in COMPUTING)
    others = {name: share for name, share in shares.items() if name not in COMPUTING}
    limits = [name for name, share in others.items() if share >= (CHOSEN if name in ("checkpoint", "evaluation") else WASTED)]
    worst = max(limits or others, key=lambda name: others[name])
    word = _LIMITS[worst]
    if limits:
        return word, f"{100 * shares[worst]:.0f} % of the time; computing {100 * computing:.0f} %"
    return "computing", f"{100 * computing:.0f} % of the time; {word} {100 * shares[worst]:.0f} %"
