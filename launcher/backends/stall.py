"""The watchdog: how long no rank has made progress, by this process's own clock. Pure but for the clock that it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from launcher.children import Event

PROGRESS = ("update", "evaluation", "progress", "note", "ready")
"""Events of ranks that show that something goes on."""


class StallWatch:
    """Hears all events of the ranks; `is_due` once the limit has passed without any that shows progress."""

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self.limit_s = limit_s
        """0: never."""
        self._clock = clock
        self._moved_at = clock()
        self._places: dict[int, dict[str, Any]] = {}

    def hear(self, event: Event) -> None:
        """Notes what an event says of progress."""
        moved = {int(rank): place for rank, place in (event.get("at") or {}).items()} if event["event"] == "alive" else {}
        self._places.update(moved)
        if moved or event["event"] in PROGRESS:
            self._moved_at = self._clock()

    def is_due(self) -> bool:
        """Whether the run counts as hung."""
        return self.limit_s > 0 and self._clock() - self._moved_at > self.limit_s

    def places(self) -> dict[int, str]:
        """Rank -> where it last made progress, as a reader takes it."""
        return {rank: _place(place) for rank, place in sorted(self._places.items())}


def _place(place: dict[str, Any]) -> str:
    update = place.get("update")
    return f"{place.get('stage')}" + (f" after update {update}" if update else "")
