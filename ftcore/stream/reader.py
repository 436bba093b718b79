"""One rank's lanes of a stream, and the updates that all ranks read together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ftcore.spec.errors import DataError, FtError, Problem
from ftcore.stream.course import Composed, Course, Exchange, Made, StoppedStreamError
from ftcore.stream.lane import Drawn, Lane, RowSource
from ftcore.stream.offers import Offers, StreamSample
from ftcore.stream.position import restored
from ftcore.stream.state import Place
from ftcore.stream.turns import Cut, Known, Wanted, cut_update, require_fit, samples_to_know

FIRST_DEPTH = 4
"""Samples of a lane that are made known for a first update by tokens."""
_UNKNOWN = Known(lengths=np.zeros(0, dtype=np.int64), ended=False)

Make = Callable[[Sequence[tuple[Place, Any]]], list[Made]]
"""Turns rows into samples."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Samples of an update that were agreed on at once."""

    cut: Cut
    offers: Offers
    epoch: int


class StreamReader:
    """Reads update after update. All ranks must ask for the same number of them."""

    def __init__(
        self,
        course: Course,
        source: RowSource[Any],
        make: Make,
        exchange: Exchange,
        place: tuple[int, int],
        position: dict[str, Any] | None,
        *,
        first_epoch: int = 0,
    ) -> None:
        """`place`: rank and number of ranks. `position`: of the whole stream, as a cursor has it; None: the beginning of `first_epoch`.
        Nothing is read before the first `next`.

        Raises CheckpointError for a position that is not one of this stream.
        """
        self._course, self._source, self._make, self._exchange = course, source, make, exchange
        self._groups, states = restored(course, position, first_epoch)
        rank, world_size = place
        self._states = {lane: states[lane] for lane in range(rank, course.all_lanes, world_size)}
        self._lanes: dict[int, Lane[Any, StreamSample]] = {}
        self._errors: dict[int, FtError] = {}
        self._known = [_UNKNOWN] * course.all_lanes
        self._most_taken = FIRST_DEPTH
        self._finished = False
        self.rounds = 0
        """Sums over the ranks so far."""

    def next(self) -> Composed | None:
        """The next update; None, on all ranks alike, when the data have ended. Raises StoppedStreamError, on all ranks, for a row of any rank that stops it."""
        try:
            return self._next()
        except DataError as error:
            # Whatever is raised below is known to all ranks.
            raise StoppedStreamError(error.problems) from error

    def _next(self) -> Composed | None:
        self._open()
        wanted = Wanted(samples=self._course.samples, tokens=self._course.tokens)
        parts: list[_Part] = []
        mine: list[StreamSample] = []
        count = 0
        while not self._finished:
            part = self._agree(wanted)
            parts.append(part)
            mine += self._take(part.cut)
            count += len(part.cut.lanes)
            wanted = wanted.less(len(part.cut.lanes), part.cut.tokens)
            self._groups = part.cut.groups
            if part.cut.ended is not None:
                self._end_epoch(part.cut.ended, part.offers.dropped(part.cut.lanes))
            if part.cut.is_full or (count and len(self._groups) == 1):
                break
        return self._composed(parts, mine) if count else None

    def position(self) -> dict[str, Any]:
        """Where the stream stands after the last update, as far as this rank knows; later updates don't change the value."""
        states = [*self._states.values(), *(lane.state for lane in self._lanes.values())]
        return {"groups": [group.to_value() for group in self._groups], "lanes": [state.copy() for state in states]}

    def _composed(self, parts: list[_Part], mine: list[StreamSample]) -> Composed:
        return Composed(
            lanes=np.concatenate([part.cut.lanes for part in parts]),
            columns=np.concatenate([part.offers.chosen(part.cut.lanes) for part in parts]),
            mine=mine,
            dropped=sum((part.offers.dropped(part.cut.lanes) for part in parts), Counter()),
            epoch=next(part.epoch for part in parts if len(part.cut.lanes)),
            epoch_after=self._epoch,
            epoch_progress=self._progress(parts[-1].offers),
            position=self.position(),
        )

    @property
    def _epoch(self) -> int:
        return min(group.epoch for group in self._groups)

    def _progress(self, offers: Offers) -> float:
        """Epochs behind the stream, of the group that has least of them; within an epoch by bytes."""
        done = []
        for index, group in enumerate(self._groups):
            read = int(offers.header[group.first : group.first + group.lanes, 3].sum()) if group.samples else 0
            done.append(group.epoch + (1.0 if self._finished else min(1.0, read / self._course.size(index))))
        return min(done)

    def _open(self) -> None:
        """Opens this rank's lanes; what they hold is read by seek."""
        for lane, state in self._states.items():
            shards_of = _ShardsOf(self._course, lane)
            try:
                self._lanes[lane] = Lane(state=state, source=self._source, shards_of=shards_of, buffer_rows=self._course.buffer_rows, seed=self._course.seed)
            except (FtError, OSError) as error:
                self._errors[lane] = _as_ft_error(error)
        self._states = {}

    def _agree(self, wanted: Wanted) -> _Part:
        """The next samples of the update, known to all ranks."""
        depth = self._most_taken + self._most_taken // 4 + 2
        if wanted.samples is not None:
            depth = samples_to_know(self._known, self._groups, wanted.samples)
        while True:
            offers = self._offer(depth)
            self._known = offers.known()
            lengths = np.concatenate([lane.lengths for lane in self._known])
            require_fit(lengths, micro_batch_tokens=self._course.micro_batch_tokens, tokens_per_update=self._course.tokens)
            cut = cut_update(self._known, self._groups, wanted)
            if cut is not None:
                break
            depth *= 2
        taken = np.bincount(cut.lanes, minlength=len(self._known)).tolist()
        self._most_taken = max(FIRST_DEPTH, *taken)
        self._known = [Known(lengths=lane.lengths[count:], ended=lane.ended) for lane, count in zip(self._known, taken, strict=True)]
        return _Part(cut, offers, self._epoch)

    def _offer(self, depth: int) -> Offers:
        """The next `depth` samples of each lane of all ranks."""
        self._fill(depth)
        own = Offers.empty(self._course.all_lanes, depth)
        for number, lane in self._lanes.items():
            samples = [(sample, dropped) for _, _, sample, dropped in lane.peek(depth)]
            try:
                own.offer(number, samples, ended=lane.is_drawn_out and lane.ready <= depth, behind=lane.trailing)
            except DataError as error:
                self._errors[number] = error
            own.read(number, lane.bytes_passed)
        for number in self._errors:
            own.fail(number)
        offers = own.summed(self._exchange.sum(own.flat()))
        self.rounds += 1
        if offers.failed:
            gathered = self._exchange.gather({lane: list(error.problems) for lane, error in self._errors.items()})
            problems: dict[int, list[Problem]] = {lane: found for each in gathered for lane, found in each.items()}
            raise DataError([problem for lane in sorted(problems) for problem in problems[lane]])
        return offers

    def _fill(self, depth: int) -> None:
        """Makes `depth` samples ready in each of this rank's lanes that has so many left."""
        while not self._errors:
            drawn: list[tuple[int, Drawn[Any]]] = []
            for number, lane in self._lanes.items():
                try:
                    for _ in range(depth - lane.ready):
                        if (row := lane.draw()) is None:
                            break
                        drawn.append((number, row))
                except (FtError, OSError) as error:
                    self._errors[number] = _as_ft_error(error)
            if not drawn:
                return
            try:
                all_made = self._make([(row.place, row.row) for _, row in drawn])
            except FtError as error:
                # A tokenizer that this host lacks: the others must hear of it too.
                self._errors[drawn[0][0]] = error
                return
            for (number, row), made in zip(drawn, all_made, strict=True):
                if made.error is not None:
                    self._errors.setdefault(number, made.error)
                self._lanes[number].add(row, made.samples, made.dropped)

    def _take(self, cut: Cut) -> list[StreamSample]:
        """This rank's samples of a cut, in its order."""
        taken = {number: iter(lane.take(int((cut.lanes == number).sum()))) for number, lane in self._lanes.items()}
        return [next(taken[lane]) for lane in cut.lanes.tolist() if lane in taken]

    def _end_epoch(self, index: int, dropped: Counter[str]) -> None:
        """Begins the next epoch of a group, or ends the stream. Raises DataError when no row of the epoch gave a sample; `dropped`: why."""
        group = self._groups[index]
        if not group.samples:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(dropped.items())) or "there are none"
            fix = "raise data.max_length, or look at the rows: ftlaunch data report"
            raise DataError(f"no row of an epoch can be trained on: {reasons}", where="data.train", fix=fix)
        if not self._course.repeat:
            self._finished = True
            return
        groups = list(self._groups)
        groups[index] = begun = group.begun_again()
        self._groups = tuple(groups)
        for lane in range(group.first, group.first + group.lanes):
            self._known[lane] = _UNKNOWN
            if lane in self._lanes:
                self._lanes[lane].begin(begun.epoch)


@dataclass(frozen=True, slots=True)
class _ShardsOf:
    course: Course
    lane: int

    def __call__(self, epoch: int) -> Sequence[Any]:
        return self.course.shards_of(self.lane, epoch)


def _as_ft_error(error: FtError | OSError) -> FtError:
    return error if isinstance(error, FtError) else DataError(f"can't be read: {error}", where="data.train", fix="check that the files can be reached")
