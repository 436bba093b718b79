"""What the short run of a point left in its folder, as numbers: windows, phases, memory, losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_lines import PHASES, Line, late_phase, number, phases_of, read_run

MOST_OF_WAITING = 0.5
"""Share of all waiting from which on it is one rank's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """How the updates of a point are counted."""

    warm_up: int
    count: int
    updates: int
    """Of each window."""

    @property
    def total(self) -> int:
        """Updates of a point, warm-up included."""
        return self.warm_up + self.count * self.updates


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One point's numbers, before it is set against others."""

    updates: int
    """That are counted."""
    window_seconds: tuple[float, ...]
    """Seconds an update, scaled to the mean tokens of an update."""
    update_seconds: float
    """Their median."""
    tokens: float
    """Of an update, mean over those counted."""
    supervised_tokens: float
    phases: dict[str, float]
    """Seconds an update, mean over ranks, of the windows that the median is."""
    peak_bytes: tuple[int, ...]
    """By rank."""
    losses: tuple[float | None, ...]
    """Of all updates."""
    row_tokens: float
    """Tokens of a micro-step, on average."""
    held_up_seconds: float
    """Of an update, in which a rank stood still since its host had no processor free, mean over ranks."""
    late_rank: str
    """Which rank most of the waiting is for, and its phase; empty: no single one."""

    @property
    def spread(self) -> float:
        """(slowest window - fastest) / median."""
        return (max(self.window_seconds) - min(self.window_seconds)) / self.update_seconds


def read_measurement(run_dir: RunDir, ranks: int, windows: Windows) -> Measurement:
    """The numbers of a finished point. Raises CheckpointError when it holds fewer updates than `windows` counts."""
    record = read_run(run_dir.path)
    lines = {line["update"]: line for line in record.updates}
    by_rank = [{line["update"]: line for line in record.ranks.get(rank, [])} for rank in range(ranks)]
    whole = [update for update in range(1, windows.total + 1) if update in lines and all(update in each for each in by_rank)]
    if len(whole) < windows.total:
        what = f"{run_dir.path.name} has {len(whole)} updates in its metrics, {windows.total} are needed"
        raise CheckpointError(what, where="scale", fix="give fewer --windows or --window-updates, or more data; and start it again")
    counted = whole[windows.warm_up :]
    tokens = fmean(lines[update]["tokens"] for update in counted)
    found = [_window(lines, by_rank, part, tokens) for part in _cut(counted, windows.updates)]
    seconds = tuple(each for each, _ in found)
    middle = _middle(seconds)
    return Measurement(
        updates=len(counted),
        window_seconds=seconds,
        update_seconds=median(seconds),
        tokens=tokens,
        supervised_tokens=fmean(lines[update]["supervised_tokens"] for update in counted),
        phases={phase: fmean(found[index][1].get(phase, 0.0) for index in middle) for phase in PHASES},
        peak_bytes=tuple(max(int(number(line, "peak_memory_bytes")) for line in mine.values()) for mine in by_rank),
        losses=tuple(_finite(lines[update].get("loss")) for update in whole),
        row_tokens=fmean(number(mine[update], "computed_tokens") / max(1.0, number(mine[update], "micro_steps", 1)) for mine in by_rank for update in counted),
        held_up_seconds=fmean(number(mine[update], "held_up_seconds") for mine in by_rank for update in counted),
        late_rank=_late_rank(by_rank, counted),
    )


def _cut(updates: Sequence[int], size: int) -> list[Sequence[int]]:
    return [updates[start : start + size] for start in range(0, len(updates), size)]


def _window(lines: dict[int, Line], by_rank: list[dict[int, Line]], updates: Sequence[int], tokens: float) -> tuple[float, dict[str, float]]:
    """(seconds an update, phase -> seconds an update) of a window, as if its updates had `tokens` each."""
    scale = tokens / fmean(lines[update]["tokens"] for update in updates)
    seconds = fmean(_seconds(lines[update], [mine[update] for mine in by_rank]) for update in updates)
    parts = [phases_of(mine[update], number(lines[update], "seconds")) for mine in by_rank for update in updates]
    phases = {phase: fmean(part[phase] for part in parts) * scale for phase in PHASES}
    return seconds * scale, phases


def _seconds(line: Line, ranks: list[Line]) -> float:
    """Wall time of an update: from the end of the one before, where ranks tell it, else its own."""
    walls = [each.get("phase_seconds") for each in ranks]
    told = [float(wall) for wall in walls if wall]
    return fmean(told) if len(told) == len(walls) else number(line, "seconds")


def _middle(values: Sequence[float]) -> list[int]:
    """The places of the value that is the median, or of the two that it is the mean of."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    half = len(values) // 2
    return order[half : half + 1] if len(values) % 2 else order[half - 1 : half + 1]


def _late_rank(by_rank: list[dict[int, Line]], counted: Sequence[int]) -> str:
    """The rank that at least half of the waiting is for, with its host and the phase in which it was late."""
    waited = [sum(number(mine[update], "caused_idle_seconds") for update in counted) for mine in by_rank]
    rank = max(range(len(waited)), key=lambda each: waited[each])
    if not waited[rank] or waited[rank] < MOST_OF_WAITING * sum(waited):
        return ""
    mine = [by_rank[rank][update] for update in counted]
    late = late_phase(mine)
    host = str(mine[-1].get("host") or "")
    where = f" on {host}" if host else ""
    return f"rank {rank}{where}" + (f", late in {late}" if late else "")


def _finite(loss: object) -> float | None:
    return float(loss) if isinstance(loss, int | float) and math.isfinite(loss) else None
