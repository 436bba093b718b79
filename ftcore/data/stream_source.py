"""What a stream reads, as preparation found it; part of RUN/prepared.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftcore.data.reading.rows import DataFile
from ftcore.spec.sections import TrainingSet


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFile:
    """One file of a stream."""

    path: str
    name: str
    """What messages call it."""
    kind: str
    compression: str
    size: int
    """Bytes as it is stored."""
    set: int
    """Number of its set among the stream's."""

    @property
    def data_file(self) -> DataFile:
        """For the readers."""
        return DataFile(path=Path(self.path), name=self.name, kind=self.kind, compression=self.compression, size=self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A part of a file that is read from its start to its end."""

    file: int
    """Number of the file in the stream, from 0."""
    start: int
    """Position of its first row."""
    end: int | None
    """Position behind its last row; None: the end of the file."""
    size: int
    """About how many bytes it has; only shares are made from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSet:
    """One set of a stream."""

    name: str
    key: str
    """Where a spec names it: data.train, data.train_sets.NAME."""
    dataset: TrainingSet
    """With the format, and the file's own names of its fields, that its first rows showed."""
    reason: str
    """How the format was found."""
    revision: str
    """Commit of a data set of the hub; else ""."""
    fingerprint: str
    """sha256 over everything that its samples and their order depend on, but the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSource:
    """Files, and the parts that lanes read."""

    sets: tuple[StreamSet, ...]
    files: tuple[StreamFile, ...]
    shards: tuple[Shard, ...]
    lanes: int
    """Of a group: all sets together, or each set of a weighted mix."""
    buffer_rows: int
    rows: int | None
    """Rows of an epoch where the files say so (parquet); None: they are not known beforehand."""
    fingerprint: str
    """Of all sets and how they are read: what a position belongs to."""

    def set_of(self, file: int) -> int:
        """The number of a file's set."""
        return self.files[file].set

    @property
    def groups(self) -> tuple[tuple[Shard, ...], ...]:
        """The shards by group of lanes: one group, or one a set where the sets have weights."""
        if not self.is_weighted:
            return (self.shards,)
        return tuple(tuple(shard for shard in self.shards if self.set_of(shard.file) == index) for index in range(len(self.sets)))

    @property
    def is_weighted(self) -> bool:
        """Whether the sets are mixed by weight; else by what there is of each."""
        return len(self.sets) > 1 and self.sets[0].dataset.weight is not None

    @property
    def weights(self) -> tuple[float, ...]:
        """By group."""
        return tuple(each.dataset.weight or 1.0 for each in self.sets) if self.is_weighted else (1.0,)
