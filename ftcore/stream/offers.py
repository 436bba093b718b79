"""What the ranks tell each other before an update: the next samples of each lane, as numbers whose sum over the ranks is all there is to know.

Each lane is one rank's; the others leave its numbers 0. So the sum holds every number as its rank wrote it, bit by bit, whatever the number of ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ftcore.data.cache import Sample
from ftcore.spec.errors import DataError
from ftcore.stream.turns import Known

Int64s = npt.NDArray[np.int64]

HEADER = ("count", "ended", "failed", "bytes_read", "dropped_behind")
COLUMNS = ("length", "supervised", "weight", "id", "set", "dropped")
DROPPED = ("overlong", "no_supervised_tokens", "bad_row")
"""Why a row gives no sample."""
MOST_DROPPED = (1 << 20) - 1
"""Rows with one reason between two samples: three such numbers share one of 64 bits."""
TRUNCATED = 1 << 32
"""Added to the set of a sample that was cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSample:
    """A sample of a stream, and what is counted of it."""

    id: int
    """Names its row: the file's number and the row's position in it."""
    sample: Sample
    supervised: int
    """Labels that count, after the shift."""
    weight: float
    """Sum of their weights."""
    set: int
    """Number of its set among data.training."""
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Offers:
    """A table of all lanes, int64: a header and `depth` samples a lane."""

    header: Int64s
    """[lanes, HEADER]"""
    columns: Int64s
    """[lanes, depth, COLUMNS]"""

    @staticmethod
    def empty(lanes: int, depth: int) -> Offers:
        """Nothing is offered yet."""
        return Offers(np.zeros((lanes, len(HEADER)), dtype=np.int64), np.zeros((lanes, depth, len(COLUMNS)), dtype=np.int64))

    def offer(self, lane: int, samples: Sequence[tuple[StreamSample, Counter[str]]], *, ended: bool, behind: Counter[str]) -> None:
        """Writes down a lane's next samples, each with the rows that were dropped before it; `behind`: those after the last one of an ended lane."""
        for index, (sample, dropped) in enumerate(samples):
            weight = int(np.float64(sample.weight).view(np.int64))
            kind = sample.set + TRUNCATED * sample.truncated
            self.columns[lane, index] = (len(sample.sample.ids), sample.supervised, weight, sample.id, kind, _packed(dropped))
        self.header[lane, :2] = len(samples), ended
        self.header[lane, 4] = _packed(behind)

    def fail(self, lane: int) -> None:
        """A row of the lane stops the run."""
        self.header[lane, 2] = 1

    def read(self, lane: int, size: int) -> None:
        """About so many bytes of the lane's shards are behind it."""
        self.header[lane, 3] = size

    def flat(self) -> Int64s:
        """One array to be summed over the ranks."""
        return np.concatenate([self.header.reshape(-1), self.columns.reshape(-1)])

    def summed(self, flat: Int64s) -> Offers:
        """The table of the same shape that `flat` is of."""
        size = self.header.size
        return Offers(flat[:size].reshape(self.header.shape), flat[size:].reshape(self.columns.shape))

    @property
    def failed(self) -> bool:
        return bool(self.header[:, 2].any())

    @property
    def bytes_read(self) -> int:
        return int(self.header[:, 3].sum())

    def known(self) -> list[Known]:
        """By lane, for `cut_update`."""
        return [Known(lengths=columns[: header[0], 0], ended=bool(header[1])) for header, columns in zip(self.header, self.columns, strict=True)]

    def chosen(self, lanes: Int64s) -> Int64s:
        """The columns of the samples that were cut, int64 [n, COLUMNS], by the lane of each."""
        index = np.zeros(len(lanes), dtype=np.int64)
        for lane in np.unique(lanes):
            own = lanes == lane
            index[own] = np.arange(own.sum())
        return self.columns[lanes, index]

    def dropped(self, lanes: Int64s) -> Counter[str]:
        """Rows dropped before the samples that were cut, and behind the last one of a lane that has ended with them."""
        counted: Counter[str] = Counter()
        for packed in self.chosen(lanes)[:, 5].tolist():
            counted += _unpacked(packed)
        taken = np.bincount(lanes, minlength=len(self.header))
        for lane, header in enumerate(self.header.tolist()):
            if header[1] and header[0] == taken[lane]:
                counted += _unpacked(header[4])
        return counted


def _packed(dropped: Counter[str]) -> int:
    packed = 0
    for reason in DROPPED:
        count = dropped[reason]
        if count > MOST_DROPPED:
            raise DataError(f"{count} rows one after another gave no sample: {reason}", where="data.train", fix="look at the rows: ftlaunch data report")
        packed = packed << 20 | count
    return packed


def _unpacked(packed: int) -> Counter[str]:
    counts = {reason: packed >> 20 * place & MOST_DROPPED for place, reason in enumerate(reversed(DROPPED))}
    return Counter({reason: counts[reason] for reason in DROPPED if counts[reason]})
