"""Which samples of the lanes an update takes: one a lane in turn, from the lanes that still have some. The same for any number of ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ftcore.spec.errors import DataError

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What all ranks know of a lane: the tokens of its next samples."""

    lengths: Int64s
    """int64 [n], in the lane's order."""
    ended: bool
    """Whether the lane has no more in this epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Lanes that take turns: all of them, or those of one set of a weighted mix."""

    first: int
    """Its first lane."""
    lanes: int
    weight: float = 1.0
    """Its share of the samples, relative to the other groups'."""
    epoch: int = 0
    turn: int = 0
    """The lane that comes next, counted from `first`."""
    samples: int = 0
    """Samples taken in this epoch."""
    drawn: int = 0
    """Samples taken in all."""

    def begun_again(self) -> Group:
        """The group at the beginning of its next epoch."""
        return dataclasses.replace(self, epoch=self.epoch + 1, samples=0, turn=0)

    def to_value(self) -> dict[str, int]:
        """What a cursor keeps of it."""
        return {name: int(getattr(self, name)) for name in ("epoch", "turn", "samples", "drawn")}

    def restored(self, value: dict[str, Any]) -> Group:
        """The group where `to_value` left it. Raises KeyError, ValueError or TypeError for anything else."""
        return dataclasses.replace(self, **{name: int(value[name]) for name in ("epoch", "turn", "samples", "drawn")})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Samples of an update: all that are wanted, or those before a group ended that had its turn."""

    lanes: Int64s
    """Lane of each sample, int64 [n], in the order of the update; a lane's samples are its next ones."""
    tokens: int
    groups: tuple[Group, ...]
    """The groups after it."""
    ended: int | None
    """The group whose epoch is over; None: not known to be."""
    is_full: bool
    """Whether the update has all samples that it wants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an update still wants: so many samples, or as many as fit so many tokens."""

    samples: int | None
    tokens: int | None
    tokens_taken: int = 0
    """Tokens that it has already."""

    def has_room(self, samples: int, tokens: int, length: int) -> bool:
        """Whether a sample of `length` tokens is taken after so many samples with so many tokens."""
        if self.samples is not None and samples >= self.samples:
            return False
        return self.tokens is None or self.tokens_taken + tokens + length <= self.tokens

    def less(self, samples: int, tokens: int) -> Wanted:
        """What is still wanted once these are taken."""
        left = None if self.samples is None else self.samples - samples
        return Wanted(samples=left, tokens=self.tokens, tokens_taken=self.tokens_taken + tokens)


def cut_update(known: Sequence[Known], groups: Sequence[Group], wanted: Wanted) -> Cut | None:
    """The next samples of an update. None when the samples of a lane run out before it is known whether it has more.

    Each sample is of the group that is furthest behind its share, and there of the next lane that has one.
    No sample may have more tokens than an update (`require_fit`).
    """
    now = list(groups)
    taken = [0] * len(known)
    order: list[int] = []
    tokens = 0
    while True:
        index = _furthest_behind(now)
        group = now[index]
        turn = _next_lane(known, taken, group)
        if turn is None:
            return None
        if turn < 0 or not wanted.has_room(len(order), tokens, length := int(known[group.first + turn].lengths[taken[group.first + turn]])):
            ended, is_full = (index if turn < 0 else None), turn >= 0 or len(order) == wanted.samples
            return Cut(lanes=np.asarray(order, dtype=np.int64), tokens=tokens, groups=tuple(now), ended=ended, is_full=is_full)
        lane = group.first + turn
        order.append(lane)
        taken[lane] += 1
        tokens += length
        now[index] = dataclasses.replace(group, turn=(turn + 1) % group.lanes, samples=group.samples + 1, drawn=group.drawn + 1)


def _furthest_behind(groups: Sequence[Group]) -> int:
    """The group whose next sample keeps the shares best: that with the least (drawn + 1/2) / weight (the method of Sainte-Laguë)."""
    return min(range(len(groups)), key=lambda index: ((groups[index].drawn + 0.5) / groups[index].weight, index))


def _next_lane(known: Sequence[Known], taken: Sequence[int], group: Group) -> int | None:
    """The lane of a group whose turn it is: -1 when all have ended, None when that is not known."""
    for step in range(group.lanes):
        turn = (group.turn + step) % group.lanes
        lane = group.first + turn
        if taken[lane] < len(known[lane].lengths):
            return turn
        if not known[lane].ended:
            return None
    return -1


def require_fit(lengths: Int64s, *, micro_batch_tokens: int, tokens_per_update: int | None) -> None:
    """Raises DataError when a sample doesn't fit a micro-step, or an update."""
    longest = int(lengths.max(initial=0))
    for name, limit in (("micro_batch_tokens", micro_batch_tokens), ("tokens_per_update", tokens_per_update)):
        if limit is not None and longest > limit:
            raise DataError(
                f"a sample has {longest} tokens, more than {name} {limit}", where=f"batch.{name}", fix=f"use at least {longest}, or a smaller data.max_length"
            )


def samples_to_know(known: Sequence[Known], groups: Sequence[Group], samples: int) -> int:
    """How many samples of each lane are enough to cut `samples` of them, when no lane ends meanwhile: one more than the largest share."""
    weights = sum(group.weight for group in groups)
    most = 1
    for group in groups:
        own = known[group.first : group.first + group.lanes]
        going = sum(not lane.ended for lane in own) or group.lanes
        share = samples if len(groups) == 1 else int(samples * group.weight / weights) + 1
        most = max(most, -(-share // going))
    return most + 1
