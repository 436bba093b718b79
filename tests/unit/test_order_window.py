"""Order and windows: pure, world-free, every sample once an epoch."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcore.batch.mix import MixOrder
from ftcore.batch.order import epoch_order
from ftcore.batch.window import UpdateSequence, bounds_by_samples, bounds_by_tokens
from ftcore.spec.errors import DataError
from ftcore.spec.sections import BatchSection, TrainSection

CASES = Path(__file__).parents[1] / "cases"


@dataclass(frozen=True)
class OneSet:
    """A set of which only the lengths are known."""

    lengths: npt.NDArray[np.int32]
    fingerprint: str = "f"
    names: tuple[str, ...] = ("train",)

    @property
    def sizes(self) -> tuple[int, ...]:
        return (len(self.lengths),)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        return (self.fingerprint,)


def sequence(samples: int, *, batch: BatchSection, epochs: float | None = None, max_steps: int | None = None) -> UpdateSequence:
    lengths = (np.arange(samples) % 9 + 2).astype(np.int32)
    return UpdateSequence(OneSet(lengths), batch=batch, train=TrainSection(num_train_epochs=epochs, max_steps=max_steps, seed=1))


def test_order_is_a_known_permutation() -> None:
    # A change of these numbers would silently reorder the data of every run that is resumed.
    assert epoch_order(8, fingerprint="abc", seed=42, epoch=0).tolist() == [2, 1, 7, 4, 3, 5, 0, 6]


def test_order_depends_on_seed_epoch_and_data() -> None:
    orders = {tuple(epoch_order(50, fingerprint=f, seed=s, epoch=e)) for f in ("a", "b") for s in (1, 2) for e in (0, 1)}
    assert len(orders) == 8


@given(samples=st.integers(1, 200), size=st.integers(1, 60), epochs=st.integers(1, 3))
def test_every_sample_once_an_epoch(samples: int, size: int, epochs: int) -> None:
    updates = sequence(samples, batch=BatchSection(global_batch_size=size), epochs=epochs)
    assert updates.total_updates == epochs * math.ceil(samples / size)
    windows = [updates.window(update) for update in range(updates.total_updates)]
    for epoch in range(epochs):
        seen = np.concatenate([window.sample_ids for window in windows if window.epoch == epoch])
        assert sorted(seen.tolist()) == list(range(samples))
    assert windows[-1].epoch_progress == epochs


@pytest.mark.parametrize(
    ("rows", "micro", "accumulation", "ranks", "epochs", "steps"),
    [
        tuple(int(value.split()[0]) for value in [*line.split("\t")[:5], line.split("\t")[6]])
        for line in (CASES / "step_counts.tsv").read_text().splitlines()
        if line and not line.startswith("#")
    ],
)
def test_short_last_window_is_an_update(rows: int, micro: int, accumulation: int, ranks: int, epochs: int, steps: int) -> None:
    """C04, L01, L03: the tail is flushed, on any number of ranks."""
    updates = sequence(rows, batch=BatchSection(global_batch_size=micro * accumulation * ranks), epochs=epochs)
    assert updates.total_updates == steps
    assert sum(len(updates.window(update).sample_ids) for update in range(steps)) == rows * epochs


def test_global_batch_need_not_divide_by_anything() -> None:
    """B07: 10 samples an update on two ranks are 10, not 8."""
    updates = sequence(25, batch=BatchSection(global_batch_size=10), epochs=1)
    assert [len(updates.window(update).sample_ids) for update in range(updates.total_updates)] == [10, 10, 5]


def test_second_epoch_is_whole_after_a_seek() -> None:
    """F09: going on at batch 4 of 10 leaves 6 in this epoch and 10 in the next."""
    updates = sequence(20, batch=BatchSection(global_batch_size=2), epochs=2)
    rest = [updates.window(update).epoch for update in range(4, updates.total_updates)]
    assert (rest.count(0), rest.count(1)) == (6, 10)


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=80), limit=st.integers(30, 90))
def test_token_windows_are_full_but_never_over(lengths: list[int], limit: int) -> None:
    array = np.asarray(lengths, dtype=np.int32)
    bounds = bounds_by_tokens(array, limit)
    assert bounds[0] == 0 and bounds[-1] == len(lengths) and (np.diff(bounds) > 0).all()
    totals = [int(array[a:b].sum()) for a, b in itertools.pairwise(bounds)]
    assert max(totals) <= limit
    for index, total in enumerate(totals[:-1]):
        assert total + lengths[bounds[index + 1]] > limit


def test_token_window_refuses_a_longer_sample() -> None:
    with pytest.raises(DataError, match="31 tokens"):
        bounds_by_tokens(np.asarray([3, 31], dtype=np.int32), 30)


def test_token_updates_of_all_epochs_are_counted() -> None:
    updates = sequence(40, batch=BatchSection(tokens_per_update=30), epochs=2)
    windows = [updates.window(update) for update in range(updates.total_updates)]
    assert sorted(np.concatenate([w.sample_ids for w in windows if w.epoch == 1]).tolist()) == list(range(40))


def test_part_of_an_epoch() -> None:
    updates = sequence(100, batch=BatchSection(global_batch_size=10), epochs=1.25)
    assert updates.total_updates == 13
    assert updates.window(12).epoch == 1
    # In doubles 1.1 times 10 is a little over 11.
    for epochs, total in ((1.1, 11), (2.3, 23), (0.07, 1), (4.35, 44)):
        assert sequence(100, batch=BatchSection(global_batch_size=10), epochs=epochs).total_updates == total
    by_tokens = BatchSection(tokens_per_update=10)
    lone = UpdateSequence(OneSet(np.full(10, 10, dtype=np.int32)), batch=by_tokens, train=TrainSection(num_train_epochs=1.1, seed=1))
    assert lone.total_updates == 11


def test_max_steps_runs_over_epochs() -> None:
    updates = sequence(10, batch=BatchSection(global_batch_size=4), max_steps=7)
    assert updates.total_updates == 7
    assert [updates.window(update).epoch for update in range(7)] == [0, 0, 0, 1, 1, 1, 2]
    assert updates.epochs == pytest.approx(2 + 1 / 3)


def test_bounds_by_samples_of_one_window() -> None:
    assert bounds_by_samples(3, 16).tolist() == [0, 3]


@pytest.mark.parametrize("batch", [BatchSection(global_batch_size=4), BatchSection(tokens_per_update=60)], ids=["samples", "tokens"])
def test_a_start_late_in_a_run_works_out_no_more_than_an_early_one(batch: BatchSection, monkeypatch: pytest.MonkeyPatch) -> None:
    """F10."""
    made: list[int] = []
    epoch_of = MixOrder.epoch

    def counted(order: MixOrder, epoch: int, *, seed: int) -> np.ndarray:
        made.append(epoch)
        return epoch_of(order, epoch, seed=seed)

    monkeypatch.setattr(MixOrder, "epoch", counted)
    costs = []
    for share in (0.01, 0.99):
        made.clear()
        updates = sequence(40, batch=batch, epochs=30.0)
        at_start = len(made)
        updates.window(int(updates.total_updates * share))
        assert len(made) - at_start <= 1
        costs.append(len(made))
    assert abs(costs[0] - costs[1]) <= 1, "the last epoch that was cut may be at hand still"


def test_a_billion_updates_are_counted_at_once() -> None:
    """F10: the last update is found without going through those before it."""
    updates = sequence(1, batch=BatchSection(global_batch_size=1), max_steps=1_000_000_000)
    assert updates.window(999_999_999).epoch == 999_999_999


def test_max_steps_by_tokens_runs_over_epochs() -> None:
    updates = sequence(40, batch=BatchSection(tokens_per_update=60), max_steps=9)
    windows = [updates.window(update) for update in range(9)]
    assert windows[-1].epoch == 2 and updates.epochs == windows[-1].epoch_progress
    assert sorted(np.concatenate([window.sample_ids for window in windows if window.epoch == 1]).tolist()) == list(range(40))
