"""The watchdog: how long no rank has made progress, by this process's own clock. Pure but for the clock that it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from launcher.children import Event

PROGRESS = ("update", "evaluation", "progress", "note", "ready")
"""Events of ranks that show that something goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds; 0: however long."""

    start_s: float
    """From the start until every rank has begun."""
    stall_s: float
    """Without progress of any rank after that."""


class StallWatch:
    """Hears all events of the ranks; `is_due` once a limit has passed: until every rank has begun, and then without any sign of progress."""

    def __init__(self, limits: Limits, world_size: int, clock: Callable[[], float]) -> None:
        self._limits, self._world_size, self._clock = limits, world_size, clock
        self._began_at = self._moved_at = clock()
        self._places: dict[int, dict[str, Any]] = {}

    @property
    def is_starting(self) -> bool:
        """Whether there are ranks that have not begun."""
        return len(self._places) < self._world_size

    def hear(self, event: Event) -> None:
        """Notes what an event says of progress."""
        moved = {int(rank): place for rank, place in (event.get("at") or {}).items()} if event["event"] == "alive" else {}
        self._places.update(moved)
        if moved or event["event"] in PROGRESS:
            self._moved_at = self._clock()

    def is_due(self) -> bool:
        """Whether the run counts as hung."""
        limit_s, since = (self._limits.start_s, self._began_at) if self.is_starting else (self._limits.stall_s, max(self._moved_at, self._began_at))
        return limit_s > 0 and self._clock() - since > limit_s

    def places(self) -> dict[int, str]:
        """Rank -> where it last made progress, as a reader takes it."""
        return {rank: _place(place) for rank, place in sorted(self._places.items())}


def _place(place: dict[str, Any]) -> str:
    update = place.get("update")
    return f"{place.get('stage')}" + (f" after update {update}" if update else "")
