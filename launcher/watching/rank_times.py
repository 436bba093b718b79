"""The newest lines of each rank's own file, as shares of its time."""

from __future__ import annotations

from collections import deque
from typing import Any

from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_lines import late_phase, summed_phases
from launcher.json_lines import Message
from launcher.watching.tail import JsonTail
from launcher.watching.view import RankView

LINES = 8
"""Newest lines that are added up: a single update says little of a rank."""
TAIL_BYTES = 1 << 16


class RankTimes:
    """Follows metrics/rank_R.jsonl of all ranks."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._tails: dict[int, JsonTail] = {}
        self._lines: dict[int, deque[Message]] = {}

    def poll(self, world_size: int) -> tuple[RankView, ...]:
        """Every rank that has a line, in rank order; a rank that the run has no longer is left out."""
        for rank in range(world_size):
            tail = self._tails.setdefault(rank, JsonTail(self._run_dir.rank_metrics(rank), first_bytes=TAIL_BYTES))
            news = tail.poll()
            lines = self._lines.setdefault(rank, deque(maxlen=LINES))
            if news.is_anew:
                lines.clear()
            for line in news.lines:
                # Lines of another attempt, or of updates that are done again, say nothing of now.
                if lines and (line.get("attempt") != lines[-1].get("attempt") or _update(line) <= _update(lines[-1])):
                    lines.clear()
                lines.append(line)
        return tuple(rank_view(rank, list(self._lines[rank]), world_size) for rank in range(world_size) if self._lines[rank])


def rank_view(rank: int, lines: list[Message], world_size: int) -> RankView:
    """One rank by its newest lines, at least one."""
    newest = lines[-1]
    seconds = summed_phases(lines)
    whole = sum(seconds.values())
    caused = sum(_number(line.get("caused_idle_seconds")) for line in lines)
    span = sum(_number(line.get("phase_seconds")) for line in lines) or whole
    memory = newest.get("allocated_bytes") or newest.get("peak_memory_bytes")
    return RankView(
        rank=rank,
        host=str(newest.get("host") or ""),
        phases={phase: value / whole for phase, value in seconds.items() if value > 0} if whole > 0 else {},
        caused_idle=caused / (world_size - 1) / span if world_size > 1 and span > 0 else 0.0,
        late_phase=late_phase(lines),
        memory_bytes=int(memory) if isinstance(memory, int | float) else None,
        update=_update(newest),
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0


def _update(line: Message) -> int:
    update = line.get("update")
    return update if isinstance(update, int) else 0
