"""Cut an epoch's order into updates. The short last window is kept: every draw of an epoch is trained on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ftcore.batch.mix import DrawRule, Mixed, MixOrder
from ftcore.spec.errors import DataError
from ftcore.spec.quantities import as_written, updates_in
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
        bounds.append(int(ends.searchsorted(before + tokens_per_update, side="right")))
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
    """Numbers of the samples, int64 [n], in epoch order; of a mix, one may be there twice."""


@dataclass(frozen=True, slots=True)
class EpochWindows:
    """The updates of one epoch that the run makes."""

    epoch: int
    first_update: int
    """0-based number of the first within the run."""
    order: Int64s
    """Numbers of the samples in epoch order."""
    bounds: Int64s
    """int64 [updates + 1]: where each begins and ends in `order`."""


class UpdateSequence:
    """All updates of a run, found by number: a function of the samples, the seed and the spec alone, never of the ranks."""

    def __init__(self, mix: Mixed, *, batch: BatchSection, train: TrainSection, draws: Mapping[str, DrawRule] | None = None) -> None:
        """`draws`: the rules by set (`spec.data.training`); None: an epoch is each sample once. Raises DataError as `draws_an_epoch` does."""
        self.order = MixOrder.of(mix, draws or {})
        self.fingerprint = self.order.fingerprint(mix.fingerprint)
        """What an update's number belongs to: the data, and what is drawn of them."""
        self._lengths = mix.lengths
        self._batch = batch
        self._seed = train.seed
        self._epoch = lru_cache(maxsize=2)(self._build_epoch)
        size = batch.global_batch_size
        self._updates_an_epoch = None if size is None else -(-self.order.draws // size)
        """The same in every epoch when samples are counted; None when tokens are."""
        self._first_updates = [0]
        """First update of each epoch, when tokens are counted."""
        if train.max_steps is not None:
            self.total_updates = train.max_steps
            self._extend(until_update=train.max_steps)
            self.epochs = self.window(train.max_steps - 1).epoch_progress
        else:
            self.epochs = float(train.num_train_epochs or 0)
            self.total_updates = self._count(self.epochs)

    def window(self, update: int) -> UpdateWindow:
        """The update numbered `update`, 0 <= update < total_updates. Cost does not grow with its position."""
        epoch, index = self._place(update)
        order, bounds = self._epoch(epoch)
        progress = epoch + (index + 1) / (len(bounds) - 1)
        return UpdateWindow(update, epoch, progress, order[bounds[index] : bounds[index + 1]])

    def by_epoch(self) -> Iterator[EpochWindows]:
        """Every update of the run, an epoch at a time."""
        first, epoch = 0, 0
        while first < self.total_updates:
            order, bounds = self._epoch(epoch)
            bounds = bounds[: self.total_updates - first + 1]
            yield EpochWindows(epoch, first, order, bounds)
            first, epoch = first + len(bounds) - 1, epoch + 1

    def _place(self, update: int) -> tuple[int, int]:
        """Epoch of an update, and its number within it."""
        if self._updates_an_epoch is not None:
            return divmod(update, self._updates_an_epoch)
        epoch = int(np.searchsorted(self._first_updates, update, side="right")) - 1
        return epoch, update - self._first_updates[epoch]

    def _build_epoch(self, epoch: int) -> tuple[Int64s, Int64s]:
        order = self.order.epoch(epoch, seed=self._seed)
        if self._batch.global_batch_size is not None:
            return order, bounds_by_samples(len(order), self._batch.global_batch_size)
        return order, bounds_by_tokens(self._lengths[order], self._batch.tokens_per_update or 0)

    def _count(self, epochs: float) -> int:
        if self._updates_an_epoch is not None:
            return updates_in(epochs, self._updates_an_epoch)
        whole = math.floor(epochs)
        part = as_written(epochs) - whole
        self._extend(until_epoch=whole)
        return self._first_updates[whole] + (math.ceil(part * self._windows(whole)) if part else 0)

    def _extend(self, *, until_update: int = 0, until_epoch: int = 0) -> None:
        """Cuts epochs, when tokens are counted, until these are known: how many updates an epoch has depends on its order."""
        if self._updates_an_epoch is None:
            while self._first_updates[-1] < until_update or len(self._first_updates) <= until_epoch:
                self._first_updates.append(self._first_updates[-1] + self._windows(len(self._first_updates) - 1))

    def _windows(self, epoch: int) -> int:
        return len(self._epoch(epoch)[1]) - 1
