"""Positions of a stream, as they stand in a cursor: numbers and short texts, none of which depends on the number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple


class Place(NamedTuple):
    """Where a row begins."""

    file: int
    position: int


@dataclass(slots=True, kw_only=True)
class LaneState:
    """One lane after the samples taken from it."""

    lane: int
    epoch: int = 0
    draws: int = 0
    """Rows that left the buffer in this epoch."""
    shard: int = 0
    """Of the lane's shards of the epoch the one that is read from."""
    position: int = 0
    """Where its next row begins."""
    buffer: list[Place] = field(default_factory=list)
    """The rows that wait to be drawn, slot by slot."""
    row: Place | None = None
    """A row of several samples of which some are taken."""
    taken: int = 0
    """How many."""

    def apply(self, filled: Sequence[Place], slot: int, *, shard: int, position: int) -> None:
        """A draw: rows were read into the buffer, then the one at `slot` left it and the last one took its place. A slot of -1 drew nothing."""
        if slot < 0:
            return
        self.buffer.extend(filled)
        self.row = self.buffer[slot]
        self.buffer[slot] = self.buffer[-1]
        self.buffer.pop()
        self.draws += 1
        self.shard, self.position = shard, position

    def copy(self) -> LaneState:
        """A value that later draws don't change."""
        return replace(self, buffer=list(self.buffer))

    def to_value(self) -> dict[str, Any]:
        """JSON-able. Places read FILE:POSITION, the buffer's with spaces between."""
        return {
            "lane": self.lane,
            "epoch": self.epoch,
            "draws": self.draws,
            "shard": self.shard,
            "position": self.position,
            "buffer": " ".join(map(_text, self.buffer)),
            "row": "" if self.row is None else _text(self.row),
            "taken": self.taken,
        }

    @staticmethod
    def from_value(value: dict[str, Any]) -> LaneState:
        """The state that `to_value` wrote. Raises KeyError, ValueError or TypeError for anything else."""
        numbers = {name: int(value[name]) for name in ("lane", "epoch", "draws", "shard", "position", "taken")}
        buffer = [_place(text) for text in value["buffer"].split()]
        return LaneState(buffer=buffer, row=_place(value["row"]) if value["row"] else None, **numbers)


def _text(place: Place) -> str:
    return f"{place.file}:{place.position}"


def _place(text: str) -> Place:
    file, _, position = text.partition(":")
    return Place(int(file), int(position))
