"""What a stream's updates depend on, how its ranks talk, and what an update is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ftcore.data.stream_source import Shard, StreamSource
from ftcore.spec.errors import DataError
from ftcore.spec.sections import Spec
from ftcore.stream.offers import Int64s, StreamSample
from ftcore.stream.shards import deal_shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What the samples of each update depend on: nothing of the ranks."""

    shards: tuple[tuple[Shard, ...], ...]
    """By group of lanes: one group, or one for each set of a weighted mix."""
    weights: tuple[float, ...]
    """By group."""
    lanes: int
    """Of each group."""
    buffer_rows: int
    """Rows that a lane holds to draw from."""
    seed: int
    repeat: bool
    """Whether a group begins again at its end; else the run ends there."""
    samples: int | None
    """Samples of an update; None where tokens are counted."""
    tokens: int | None
    """Tokens of an update at most; None where samples are counted."""
    micro_batch_tokens: int

    @property
    def all_lanes(self) -> int:
        return self.lanes * len(self.shards)

    def shards_of(self, lane: int, epoch: int) -> Sequence[Shard]:
        """The shards of a lane in an epoch of its group, in reading order."""
        group, own = divmod(lane, self.lanes)
        return deal_shards(self.shards[group], self.lanes, seed=self.seed + group, epoch=epoch)[own]

    def size(self, group: int) -> int:
        """About how many bytes an epoch of a group has."""
        return max(1, sum(shard.size for shard in self.shards[group]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What became of a row."""

    samples: tuple[StreamSample, ...] = ()
    dropped: Counter[str] = field(default_factory=Counter)
    """Why it gives no sample, counted once."""
    error: DataError | None = None
    """Why the run must stop at it."""


class StoppedStreamError(DataError):
    """Why a stream can't go on, raised on all ranks alike, between two updates."""


class Exchange(Protocol):
    """How the ranks talk to each other. Every rank calls the same methods in the same order."""

    def sum(self, values: Int64s) -> Int64s:
        """The sum of an array over all ranks."""

    def gather(self, value: Any) -> list[Any]:
        """`value` of every rank, in rank order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """One update; `mine` and `position` are this rank's, the rest is the same on every rank."""

    lanes: Int64s
    """Lane of each sample, int64 [n]."""
    columns: Int64s
    """int64 [n, offers.COLUMNS]"""
    mine: list[StreamSample]
    """The samples of this rank's lanes, in the order of the update."""
    dropped: Counter[str]
    """Rows that gave no sample, by reason."""
    epoch: int
    epoch_after: int
    epoch_progress: float
    """Epochs finished once it is done, as far as bytes tell."""
    position: dict[str, Any]
    """Groups, and the states of this rank's lanes, after it."""


def course_of(source: StreamSource, spec: Spec) -> Course:
    """The course of a run on this source."""
    return Course(
        shards=source.groups,
        weights=source.weights,
        lanes=source.lanes,
        buffer_rows=source.buffer_rows,
        seed=spec.train.seed,
        repeat=spec.data.repeat,
        samples=spec.batch.global_batch_size,
        tokens=spec.batch.tokens_per_update,
        micro_batch_tokens=spec.batch.micro_batch_tokens,
    )
