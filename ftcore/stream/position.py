"""A stream's position as it stands in a cursor: gathered over the ranks, and taken up again by any number of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftcore.spec.errors import CheckpointError
from ftcore.stream.course import Course
from ftcore.stream.state import LaneState
from ftcore.stream.turns import Group


def gathered(position: dict[str, Any], gather: Callable[[Any], list[Any]]) -> dict[str, Any]:
    """The position of the whole stream, JSON-able, from each rank's. Every rank must call it; `gather` gives a value of every rank."""
    lanes = [lane.to_value() for lane in position["lanes"]]
    every = [lane for part in gather(lanes) for lane in part]
    return {"groups": position["groups"], "lanes": sorted(every, key=lambda lane: int(lane["lane"]))}


def restored(course: Course, position: dict[str, Any] | None, first_epoch: int = 0) -> tuple[tuple[Group, ...], list[LaneState]]:
    """Groups and lanes at a position that `gathered` gave; None: at the beginning of `first_epoch`.

    Raises CheckpointError when it is not one of this stream.
    """
    groups = tuple(Group(first=course.lanes * index, lanes=course.lanes, weight=weight, epoch=first_epoch) for index, weight in enumerate(course.weights))
    if position is None:
        return groups, [LaneState(lane=lane, epoch=first_epoch) for lane in range(course.all_lanes)]
    try:
        if len(position["groups"]) != len(groups):
            raise ValueError(f"{len(position['groups'])} groups of lanes, the stream has {len(groups)}")
        groups = tuple(group.restored(value) for group, value in zip(groups, position["groups"], strict=True))
        states = [LaneState.from_value(value) for value in position["lanes"]]
        if [state.lane for state in states] != list(range(course.all_lanes)):
            raise ValueError(f"{len(states)} lanes, the stream has {course.all_lanes}")
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        fix = "resume from another checkpoint, or start a new run"
        raise CheckpointError(f"not a position of this stream: {error}", where="cursor.json", fix=fix) from error
    return groups, states
