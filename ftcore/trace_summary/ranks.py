"""What the traces of one rank say, added up, and how the ranks compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import numpy as np
import numpy.typing as npt

from ftcore.trace_summary.collectives import Collective, Waiting, collectives_of, part_waiting
from ftcore.trace_summary.operators import Taken, added, taken_by_kernel, taken_by_operator
from ftcore.trace_summary.parts import PARTS, PHASES, divide, training_threads
from ftcore.trace_summary.recorded import Recorded

EVEN = 0.05
"""Ranks whose computing differs by less, as a share of the mean, are alike."""


@dataclass(slots=True)
class RankTime:
    """One rank, over all its traces."""

    rank: int
    host: str = ""
    traces: list[str] = field(default_factory=list)
    computed_s: dict[int, float] = field(default_factory=dict)
    """By number of the profiled update, from 1: the seconds of computing."""
    wall_s: float = 0.0
    table: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((len(PHASES), len(PARTS))))
    """[PHASES, PARTS] seconds."""
    communication_s: float = 0.0
    overlapped_s: float = 0.0
    synchronised: tuple[int, float] = (0, 0.0)
    """Calls in which the host waited for the device, and their seconds."""
    collectives: list[Collective] = field(default_factory=list)
    operators: dict[str, Taken] = field(default_factory=dict)
    kernels: dict[str, Taken] = field(default_factory=dict)
    memory: dict[str, tuple[int, int]] = field(default_factory=dict)
    on_device: bool = False

    def add(self, recorded: Recorded, name: str) -> None:
        """Adds one trace, a file called `name`. One without anything in it only leaves its name."""
        self.traces.append(name)
        division = divide(recorded)
        if not len(division.window):
            return
        window = (float(division.window[0, 0]), float(division.window[-1, 1]))
        self.computed_s |= division.computed_s
        self.wall_s += division.wall_s
        self.table += division.table
        self.communication_s += division.communication_s
        self.overlapped_s += division.overlapped_s
        self.on_device |= recorded.on_device
        waits = [end - start for start, end in recorded.synchronised.intervals.tolist() if window[0] <= start < window[1]]
        self.synchronised = (self.synchronised[0] + len(waits), self.synchronised[1] + sum(waits) / 1e6)
        self.collectives += collectives_of(recorded, training_threads(recorded), window)
        self.operators = added([self.operators, taken_by_operator(recorded, window)])
        self.kernels = added([self.kernels, taken_by_kernel(recorded, window)])
        for device, (first, peak) in recorded.memory.items():
            known_first, known_peak = self.memory.get(device, (first, peak))
            self.memory[device] = (known_first, max(known_peak, peak))

    @property
    def updates(self) -> list[int]:
        """Numbers of the profiled updates."""
        return sorted(self.computed_s)

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by PARTS; their sum is `wall_s`."""
        return dict(zip(PARTS, self.table.sum(axis=0).tolist(), strict=True))

    def phases(self) -> dict[str, dict[str, float]]:
        """Seconds by phase: `wall_s` and PARTS. Phases that took no time are missing."""
        rows = zip(PHASES, self.table.tolist(), strict=True)
        return {phase: {"wall_s": sum(row), **dict(zip(PARTS, row, strict=True))} for phase, row in rows if sum(row) > 0}

    def to_record(self, waiting: Waiting | None) -> dict[str, Any]:
        """The rank in summary.json."""
        return {
            "rank": self.rank,
            "host": self.host,
            "traces": self.traces,
            "updates": len(self.updates),
            "wall_s": self.wall_s,
            "parts": self.parts,
            "communication": {
                "total_s": self.communication_s,
                "overlapped_s": self.overlapped_s,
                "exposed_s": self.parts["communication"],
                "overlap_share": self.overlapped_s / self.communication_s if self.communication_s else None,
                "waiting_s": None if waiting is None else waiting.waiting_s,
                "transfer_s": None if waiting is None else waiting.transfer_s,
            },
            "phases": self.phases(),
            "synchronisations": {"calls": self.synchronised[0], "seconds": self.synchronised[1]},
            "memory": {device: {"first_bytes": first, "peak_bytes": peak} for device, (first, peak) in sorted(self.memory.items())},
        }


def waiting_of(ranks: Sequence[RankTime]) -> dict[int, Waiting] | None:
    """By rank, what was waiting in its collectives; None where the ranks' collectives can't be set beside each other."""
    return part_waiting({each.rank: each.collectives for each in ranks})


def imbalance(ranks: Sequence[RankTime], tokens: Mapping[int, int]) -> dict[str, Any] | None:
    """How unlike the ranks compute, and whether the tokens that they were dealt say why. None for one rank.

    A rank is named where it computes longest in every update, and by EVEN over the mean.

    `tokens`: computed in the profiled updates, by rank; ranks that are not known are missing.
    """
    if len(ranks) < 2:
        return None
    compute = {each.rank: each.parts["compute"] for each in ranks}
    middle = mean(compute.values()) or 1.0
    slowest = max(compute, key=lambda rank: compute[rank])
    excess = compute[slowest] / middle - 1
    # In one update of several a rank may be slow by chance.
    common = set.intersection(*(set(each.computed_s) for each in ranks))
    is_always = all(max(ranks, key=lambda each: each.computed_s[update]).rank == slowest for update in common)
    is_uneven = excess >= EVEN and is_always
    found: dict[str, Any] = {"compute_max_over_mean": excess + 1, "slowest_rank": slowest if is_uneven else None, "tokens_max_over_mean": None, "cause": ""}
    if tokens.keys() >= compute.keys():
        fair = mean(tokens[rank] for rank in compute) or 1.0
        dealt = tokens[slowest] / fair - 1
        found["tokens_max_over_mean"] = max(tokens[rank] for rank in compute) / fair
        if is_uneven:
            found["cause"] = "data" if dealt >= excess / 2 else "device"
    return found
