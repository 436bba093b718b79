"""Where a run's time went: seconds by phase, of each rank and over time, also of lines written before there were phases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftcore.spec.run_record import Line, covered, number

if TYPE_CHECKING:
    from ftcore.report.run_view import RunView

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
_OLDER = {"forward": "forward", "backward": "backward", "step": "optimizer", "data_wait_seconds": "data_wait"}
"""Field of a rank's line without phases -> phase; in metrics.jsonl their names begin with `seconds_`."""


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
    late_phase: str
    """The phase that it was most often in when it came late; empty: it never did."""


def phases_of(line: Mapping[str, object]) -> dict[str, float]:
    """Phase -> seconds of a line of either file; older lines know forward, backward, step and the wait for data, and what is left of the update is other."""
    phases = line.get("phases")
    if isinstance(phases, dict):
        return {name: _seconds(phases.get(name)) for name in PHASE_NAMES}
    own = dict(line)
    found = {phase: number(own, field, number(own, f"seconds_{field}")) for field, phase in _OLDER.items()}
    return {**found, "other": max(0.0, number(own, "seconds", sum(found.values())) - sum(found.values()))}


def _seconds(value: object) -> float:
    """Read a million times for a long run: nothing is asked twice."""
    return value if type(value) is float and 0.0 <= value < math.inf else float(value) if type(value) is int else 0.0


def has_phases(lines: Iterable[Line]) -> bool:
    """Whether any line knows phases."""
    return any(isinstance(line.get("phases"), Mapping) for line in lines)


def summed(lines: Sequence[Line]) -> dict[str, float]:
    """Phase -> seconds of all lines together."""
    found = dict.fromkeys(PHASE_NAMES, 0.0)
    for line in lines:
        for name, value in phases_of(line).items():
            found[name] += value
    return found


def rank_times(view: RunView) -> list[RankTimes]:
    """By rank; empty where no rank wrote lines."""
    return [_of_rank(rank, lines) for rank, lines in view.record.ranks.items() if lines]


def _of_rank(rank: int, lines: list[Line]) -> RankTimes:
    late: dict[str, float] = {}
    for line in lines:
        if line.get("late_phase"):
            late[str(line["late_phase"])] = late.get(str(line["late_phase"]), 0.0) + number(line, "caused_idle_seconds")
    return RankTimes(
        rank=rank,
        host=str(lines[-1].get("host") or ""),
        updates=sum(int(number(line, "phase_updates", 1)) for line in lines),
        seconds=summed(lines),
        caused_idle_s=sum(number(line, "caused_idle_seconds") for line in lines),
        late_phase=max(late, key=lambda name: late[name]) if late else "",
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
        seconds = summed(part)
        edges.append(float(part[-1]["update"]))
        for name, values in found.items():
            values.append(seconds[name] / updates)
    return edges, found


def limiting(seconds: Mapping[str, float]) -> tuple[str, str]:
    """(what keeps the run from being faster, in words; its share of the time)."""
    whole = sum(seconds.values())
    if whole <= 0:
        return "–", ""
    shares = {name: value / whole for name, value in seconds.items()}
    computing = sum(shares[name] for name in COMPUTING)
    worst = max((name for name in shares if name not in COMPUTING), key=lambda name: shares[name])
    word = _LIMITS[worst]
    if shares[worst] >= (CHOSEN if worst in ("checkpoint", "evaluation") else WASTED):
        return word, f"{100 * shares[worst]:.0f} % of the time; computing {100 * computing:.0f} %"
    return "computing", f"{100 * computing:.0f} % of the time; {word} {100 * shares[worst]:.0f} %"
