"""What a feeder hands to the training loop: one update, of which the rank computes its own part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ftcore.batch.collate import MicroBatch
from ftcore.feed.layout import Layout

LONGEST_SAMPLES = 5
"""Samples of an update that are named as the first to look at."""

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What an update holds, over all ranks; padding is never counted."""

    samples: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    """Labels that count, after the shift."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            samples=self.samples + other.samples,
            tokens=self.tokens + other.tokens,
            supervised_tokens=self.supervised_tokens + other.supervised_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FedUpdate:
    """One update. `parts` and `batches` are this rank's, the rest is the same on every rank."""

    update: int
    """0-based number within the run."""
    epoch: int
    """0-based."""
    epoch_progress: float
    """Epochs finished once this update is done."""
    epoch_after: int
    """Epoch of the update after it; its own epoch where there is none."""
    sample_ids: Int64s
    """All samples of the update, int64 [n]."""
    parts: list[Int64s]
    """This rank's sample ids by micro-step."""
    batches: list[MicroBatch]
    """This rank's micro-steps, as many as on every rank; on the host."""
    weight_sum: float
    """Weights of the supervised tokens over all ranks; their number where no message has a weight of its own."""
    counts: Counts
    computed_tokens: int
    """Positions computed over all ranks, padding and filler rows included."""
    by_set: dict[str, Counts] = field(default_factory=dict)
    """Counts by set of a mix; empty with a single set."""
    position: dict[str, Any] | None = None
    """Where a stream stands after this update, as far as this rank knows; None: the update's number is enough."""
    dropped_rows: dict[str, int] = field(default_factory=dict)
    """Rows of a stream that gave no sample, by reason, and stand before or between the update's samples."""
    truncated: int = 0
    """Samples of a stream that were cut to data.max_length."""
    longest: tuple[int, ...] = ()
    """Ids of its longest samples, longest first, at most LONGEST_SAMPLES."""


def planned_cost(fed: FedUpdate, layout: Layout) -> float:
    """Planned time of this rank's micro-steps, in matrix products of a token; filler rows cost nothing."""
    held = (np.array(batch.segment_lengths) for batch, part in zip(fed.batches, fed.parts, strict=True) if len(part))
    return sum(layout.cost(lengths) for lengths in held)


class Feeder(Protocol):
    """Feeds one rank. Every rank asks for the same updates in the same order."""

    @property
    def total_updates(self) -> int:
        """Updates of the run; a stream may end before."""

    @property
    def wait_s(self) -> float:
        """Seconds that the last `next` took."""

    def next(self, update: int) -> FedUpdate | None:
        """The update numbered `update`, from 0. None, on all ranks alike: the data have ended before it."""

    def whole_position(self, position: dict[str, Any]) -> dict[str, Any] | None:
        """What a cursor keeps of a stream, made of every rank's `FedUpdate.position` of the same update; every rank calls it."""

    def close(self) -> None:
        """Ends what works ahead; a later `next` begins it again. Never hangs, and may be called twice."""
