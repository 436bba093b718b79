"""One lane: rows in the order of its shards, drawn from a buffer at random, and the samples made of them.

Rows are drawn ahead of what is trained on. What a draw did to the buffer is kept with its row and is applied to the lane's
position when the row's first sample is taken, so that the position is always that of the samples taken, whatever lies ready.
Only rows without samples at the end of an epoch are left as soon as the end is seen: a position before or behind them goes on alike.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from ftcore.data.stream_source import Shard
from ftcore.stream.draws import Draws
from ftcore.stream.state import LaneState, Place

RowT = TypeVar("RowT")
SampleT = TypeVar("SampleT")
RowT_co = TypeVar("RowT_co", covariant=True)


class RowSource(Protocol[RowT_co]):
    """Where rows are read."""

    def read(self, file: int, position: int, end: int | None) -> Iterator[tuple[int, int, RowT_co]]:
        """(position, position after, row) of the rows from `position` on that begin before `end`."""

    def pick(self, places: Sequence[Place]) -> Sequence[RowT_co]:
        """The rows at these places, in this order."""


@dataclass(frozen=True, slots=True)
class Drawn(Generic[RowT]):
    """A row that left the buffer, and what its draw did."""

    place: Place
    row: RowT
    filled: tuple[Place, ...]
    """Places of the rows that were read into the buffer before the draw."""
    slot: int
    """Where in the buffer it stood; the last one took its place."""
    shard: int
    """Of the lane's shards of the epoch the one that is read from after the draw."""
    position: int
    """Where in that shard's file."""


@dataclass(slots=True)
class _Waiting(Generic[RowT, SampleT]):
    drawn: Drawn[RowT]
    samples: tuple[SampleT, ...]
    outcomes: Counter[str]


@dataclass(slots=True)
class Lane(Generic[RowT, SampleT]):
    """`draw` and `add` work ahead; `take` moves the position."""

    state: LaneState
    source: RowSource[RowT]
    shards_of: Callable[[int], Sequence[Shard]]
    """The lane's shards in an epoch."""
    buffer_rows: int
    """Rows that a draw is made from."""
    seed: int
    _rows: list[tuple[Place, RowT]] = field(default_factory=list)
    _waiting: deque[_Waiting[RowT, SampleT]] = field(default_factory=deque)
    _reading: Iterator[tuple[int, int, RowT]] | None = None
    _shards: Sequence[Shard] = ()
    _shard: int = 0
    _position: int = 0
    _draws: int = 0
    _random: Draws | None = None
    _undrawn: Drawn[RowT] | None = None
    """The row in progress of a restored lane, whose samples are to be made once more."""

    def __post_init__(self) -> None:
        self._enter()

    def begin(self, epoch: int) -> None:
        """Starts an epoch: nothing of the one before is left."""
        self.state = LaneState(lane=self.state.lane, epoch=epoch)
        self._rows, self._waiting, self._undrawn = [], deque(), None
        self._enter()

    def _enter(self) -> None:
        state = self.state
        self._shards = self.shards_of(state.epoch)
        self._shard, self._draws, self._reading = state.shard, state.draws, None
        fresh = not state.draws
        self._position = self._shards[0].start if fresh and self._shards else state.position
        self._random = Draws(seed=self.seed, lane=state.lane, epoch=state.epoch)
        wanted = [*state.buffer, *((state.row,) if state.row is not None else ())]
        rows: Sequence[RowT] = self.source.pick(wanted) if wanted else []
        self._rows = list(zip(state.buffer, rows, strict=False))
        if state.row is not None:
            self._undrawn = Drawn(state.row, rows[-1], (), -1, self._shard, self._position)

    @property
    def ready(self) -> int:
        """Samples that wait to be taken."""
        first = self.state.taken if self.state.row is not None and self._waiting else 0
        return sum(len(waiting.samples) for waiting in self._waiting) - first

    @property
    def is_drawn_out(self) -> bool:
        """Whether the epoch has no row left to draw."""
        return self._undrawn is None and not self._rows and self._shard >= len(self._shards)

    @property
    def bytes_passed(self) -> int:
        """About how many bytes of its shards are behind the lane: of what was read, the share of the rows that were drawn."""
        state, rows = self.state, self.state.draws + len(self.state.buffer)
        if not state.draws:
            return 0
        read = sum(shard.size for shard in self._shards[: state.shard])
        if state.shard < len(self._shards):
            shard = self._shards[state.shard]
            read += max(0, min(shard.size, state.position - shard.start))
        return read * state.draws // rows

    def draw(self) -> Drawn[RowT] | None:
        """The next row, to be handed back with its samples by `add`; None when the epoch has no more."""
        if self._undrawn is not None:
            drawn, self._undrawn = self._undrawn, None
            return drawn
        filled: list[Place] = []
        while len(self._rows) < self.buffer_rows and (read := self._read()) is not None:
            self._rows.append(read)
            filled.append(read[0])
        if not self._rows or self._random is None:
            return None
        slot = self._random.below(self._draws, len(self._rows))
        self._draws += 1
        place, row = self._rows[slot]
        self._rows[slot] = self._rows[-1]
        self._rows.pop()
        return Drawn(place, row, tuple(filled), slot, self._shard, self._position)

    def _read(self) -> tuple[Place, RowT] | None:
        while self._shard < len(self._shards):
            shard = self._shards[self._shard]
            if self._reading is None:
                self._reading = self.source.read(shard.file, self._position, shard.end)
            found = next(self._reading, None)
            if found is not None:
                position, self._position, row = found
                return Place(shard.file, position), row
            self._reading = None
            self._shard += 1
            self._position = self._shards[self._shard].start if self._shard < len(self._shards) else 0
        return None

    def add(self, drawn: Drawn[RowT], samples: Sequence[SampleT], outcomes: Counter[str]) -> None:
        """What was made of a row: no, one or several samples, and what to count for it once it is passed. In the order of the draws."""
        self._waiting.append(_Waiting(drawn, tuple(samples), outcomes))

    def peek(self, count: int) -> list[tuple[Place, int, SampleT, Counter[str]]]:
        """The next `count` samples, fewer when fewer are ready: place of the row, number within it, sample, and what is counted when it is taken."""
        found: list[tuple[Place, int, SampleT, Counter[str]]] = []
        passed: Counter[str] = Counter()
        first = self.state.taken if self.state.row is not None else 0
        for waiting in self._waiting:
            # Of a row that is begun already everything was counted.
            passed += waiting.outcomes if not first else Counter()
            for number in range(first, len(waiting.samples)):
                if len(found) == count:
                    return found
                found.append((waiting.drawn.place, number, waiting.samples[number], passed))
                passed = Counter()
            first = 0
        return found

    @property
    def trailing(self) -> Counter[str]:
        """What is counted for the rows after the last sample that is ready."""
        passed: Counter[str] = Counter()
        for waiting in reversed(self._waiting):
            if waiting.samples:
                break
            passed += waiting.outcomes
        return passed

    def take(self, count: int) -> list[SampleT]:
        """Takes the next `count` samples, which must be ready, and with the last one of an epoch the rows behind it."""
        taken: list[SampleT] = []
        while len(taken) < count:
            waiting = self._waiting[0]
            if self.state.row is None:
                self.state.apply(waiting.drawn.filled, waiting.drawn.slot, shard=waiting.drawn.shard, position=waiting.drawn.position)
            if self.state.taken < len(waiting.samples):
                taken.append(waiting.samples[self.state.taken])
                self.state.taken += 1
            if self.state.taken >= len(waiting.samples):
                self._leave_row()
        if not self.ready and self.is_drawn_out:
            while self._waiting:
                drawn = self._waiting[0].drawn
                self.state.apply(drawn.filled, drawn.slot, shard=drawn.shard, position=drawn.position)
                self._leave_row()
        return taken

    def _leave_row(self) -> None:
        self._waiting.popleft()
        self.state.row, self.state.taken = None, 0
