"""Cut an epoch's order into updates. The short last window is kept: every sample is trained on once an epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ftcore.batch.order import epoch_order
from ftcore.spec.errors import DataError
from ftcore.spec.sections import BatchSection, TrainSection

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


def bounds_by_samples(samples: int, global_batch_size: int) -> Int64s:
    """Positions where windows begin and end, int64 [updates + 1]; `global_batch_size` samples each, the last may hold fewer."""
    starts = np.arange(0, samples, global_batch_size, dtype=np.int64)
    return np.append(starts, np.int64(samples))


def bounds_by_tokens(lengths_in_order: Int32s, tokens_per_update: int) -> Int64s:
    """As `bounds_by_samples`, but each window takes samples as long as their tokens fit `tokens_per_update`.

    A sample that is longer than the limit by itself is refused with DataError.
    """
    if len(lengths_in_order) and int(lengths_in_order.max()) > tokens_per_update:
        raise DataError(
            f"a sample has {int(lengths_in_order.max())} tokens, more than tokens_per_update {tokens_per_update}",
            where="batch.tokens_per_update",
            fix=f"use at least {int(lengths_in_order.max())}",
        )
    ends = np.cumsum(lengths_in_order, dtype=np.int64)
    bounds = [0]
    while bounds[-1] < len(ends):
        before = ends[bounds[-1] - 1] if bounds[-1] else 0
        bounds.append(int(np.searchsorted(ends, before + tokens_per_update, side="right")))
    return np.asarray(bounds, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class UpdateWindow:
    """The samples of one update."""

    update: int
    """0-based number within the run."""
    epoch: int
    """0-based."""
    epoch_progress: float
    """Epochs finished once this update is done."""
    sample_ids: Int64s
    """Indices into the sample set, int64 [n], in epoch order."""


class UpdateSequence:
    """All updates of a run, found by number: a function of the samples, the seed and the spec alone, never of the ranks."""

    def __init__(self, lengths: Int32s, *, fingerprint: str, batch: BatchSection, train: TrainSection) -> None:
        self._lengths = lengths
        self._fingerprint = fingerprint
        self._batch = batch
        self._seed = train.seed
        self._epoch = lru_cache(maxsize=2)(self._build_epoch)
        self._first_updates = [0]
        if train.max_steps is not None:
            self.total_updates = train.max_steps
            self.epochs = self._cover(train.max_steps)
        else:
            self.epochs = float(train.num_train_epochs or 0)
            self.total_updates = self._count(self.epochs)

    def window(self, update: int) -> UpdateWindow:
        """The update numbered `update`, 0 <= update < total_updates. Cost does not grow with its position."""
        epoch = int(np.searchsorted(self._first_updates, update, side="right")) - 1
        order, bounds = self._epoch(epoch)
        index = update - self._first_updates[epoch]
        progress = epoch + (index + 1) / (len(bounds) - 1)
        return UpdateWindow(update, epoch, progress, order[bounds[index] : bounds[index + 1]])

    def _build_epoch(self, epoch: int) -> tuple[Int64s, Int64s]:
        order = epoch_order(len(self._lengths), fingerprint=self._fingerprint, seed=self._seed, epoch=epoch)
        if self._batch.global_batch_size is not None:
            return order, bounds_by_samples(len(order), self._batch.global_batch_size)
        return order, bounds_by_tokens(self._lengths[order], self._batch.tokens_per_update or 0)

    def _updates_of_epoch(self, epoch: int) -> int:
        if self._batch.global_batch_size is not None:
            return -(-len(self._lengths) // self._batch.global_batch_size)
        return len(self._epoch(epoch)[1]) - 1

    def _count(self, epochs: float) -> int:
        whole = math.floor(epochs)
        for epoch in range(whole):
            self._first_updates.append(self._first_updates[-1] + self._updates_of_epoch(epoch))
        part = math.ceil((epochs - whole) * self._updates_of_epoch(whole)) if epochs > whole else 0
        return self._first_updates[-1] + part

    def _cover(self, updates: int) -> float:
        while self._first_updates[-1] < updates:
            self._first_updates.append(self._first_updates[-1] + self._updates_of_epoch(len(self._first_updates) - 1))
        return self.window(updates - 1).epoch_progress if updates else 0.0
