"""Mixes: counts and shares exact, an order that only data, rules, seed and epoch decide."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcore.batch.mix import MixOrder, draws_an_epoch
from ftcore.batch.order import epoch_order
from ftcore.batch.window import UpdateSequence
from ftcore.data.cache import Counts, SampleSet, write_samples
from ftcore.data.mix import SampleMix, counts_by_set, supervised_share_of
from ftcore.spec.errors import DataError
from ftcore.spec.sections import BatchSection, TrainingSet, TrainSection

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lengths:
    """Sets of which only sizes and lengths are known."""

    sizes: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple("abcd"[: len(self.sizes)])

    @property
    def fingerprints(self) -> tuple[str, ...]:
        return tuple(f"fingerprint of {name}" for name in self.names)

    @property
    def fingerprint(self) -> str:
        return "whole"

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        return np.full(sum(self.sizes), 10, dtype=np.int32)


def rules(**given: dict[str, float]) -> dict[str, TrainingSet]:
    return {name: TrainingSet(path="x", **values) for name, values in given.items()}  # type: ignore[arg-type]


def sequence(sizes: tuple[int, ...], draws: dict[str, TrainingSet], *, size: int = 8, epochs: float = 1, seed: int = 1) -> UpdateSequence:
    return UpdateSequence(Lengths(sizes), batch=BatchSection(global_batch_size=size), train=TrainSection(num_train_epochs=epochs, seed=seed), draws=draws)


@pytest.mark.parametrize(
    ("sizes", "given", "counts"),
    [
        ({"a": 10, "b": 30}, {}, {"a": 10, "b": 30}),
        ({"a": 10, "b": 30}, {"a": {"epochs": 3}, "b": {"samples": 7}}, {"a": 30, "b": 7}),
        ({"a": 10, "b": 30}, {"a": {"epochs": 0.25}}, {"a": 3, "b": 30}),
        ({"a": 10, "b": 30}, {"a": {"epochs": 1.15}}, {"a": 12, "b": 30}),
        ({"a": 10, "b": 30}, {"a": {"weight": 0.75}, "b": {"weight": 0.25}}, {"a": 30, "b": 10}),
        # 100 thirds: the largest remainders get what is left, of equal ones the first.
        ({"a": 50, "b": 25, "c": 25}, {"a": {"weight": 1}, "b": {"weight": 1}, "c": {"weight": 1}}, {"a": 34, "b": 33, "c": 33}),
        ({"a": 50, "b": 51}, {"a": {"weight": 1}, "b": {"weight": 2}}, {"a": 34, "b": 67}),
        ({"a": 10}, {"a": {"weight": 5}}, {"a": 10}),
    ],
)
def test_draws_an_epoch(sizes: dict[str, int], given: dict[str, dict[str, float]], counts: dict[str, int]) -> None:
    assert draws_an_epoch(sizes, rules(**given)) == counts


def test_rules_that_can_not_hold_are_told_together() -> None:
    with pytest.raises(DataError) as told:
        draws_an_epoch({"a": 1, "b": 1, "c": 1}, rules(a={"weight": 1}, b={"weight": 0}))
    assert [(problem.what, problem.where) for problem in told.value.problems] == [
        ("set c has no weight, others have one", "data.train_sets.c"),
        ("set b has weight 0", "data.train_sets.b"),
    ]
    with pytest.raises(DataError, match="an epoch draws no sample of set b"):
        draws_an_epoch({"a": 10, "b": 10}, rules(a={"weight": 1000}, b={"weight": 1}))


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    samples=st.lists(st.integers(1, 120), min_size=4, max_size=4),
    epochs=st.integers(1, 4),
    seed=st.integers(0, 3),
)
def test_every_sample_of_a_set_comes_equally_often(sizes: list[int], samples: list[int], epochs: int, seed: int) -> None:
    """Over the run, of each set as many draws as its rule says, and none twice before each was there: the count of a sample is one of two."""
    given = rules(**{name: {"samples": count} for name, count in zip("abcd"[: len(sizes)], samples, strict=False)})
    updates = sequence(tuple(sizes), given, epochs=epochs, seed=seed)
    drawn = np.concatenate([updates.window(update).sample_ids for update in range(updates.total_updates)])
    start = 0
    for size, count in zip(sizes, samples, strict=False):
        times = np.bincount(drawn[(drawn >= start) & (drawn < start + size)] - start, minlength=size)
        assert times.sum() == count * epochs
        assert times.max() - times.min() <= 1
        start += size
    assert len(drawn) == epochs * sum(samples[: len(sizes)])


def test_a_set_goes_on_where_the_epoch_before_stopped() -> None:
    order = MixOrder((10,), ("f",), (4,))
    run = np.concatenate([order.epoch(epoch, seed=3) for epoch in range(5)])
    expected = np.concatenate([epoch_order(10, fingerprint="f", seed=3, epoch=each) for each in range(2)])
    assert run.tolist() == expected.tolist()
    # More than once an epoch: permutation after permutation.
    twice = MixOrder((10,), ("f",), (25,)).epoch(1, seed=3)
    passes = np.concatenate([epoch_order(10, fingerprint="f", seed=3, epoch=each) for each in range(2, 5)])
    assert twice.tolist() == passes[5:30].tolist()


@pytest.mark.parametrize("given", [{}, {"a": {"weight": 2}}, {"a": {"epochs": 1}}, {"a": {"samples": 500}}])
def test_one_plain_set_has_the_order_it_always_had(given: dict[str, dict[str, float]]) -> None:
    """Checkpoints of runs from before mixes go on: same order, same fingerprint."""
    updates = sequence((500,), rules(**given), size=500, epochs=2)
    for epoch in range(2):
        assert updates.window(epoch).sample_ids.tolist() == epoch_order(500, fingerprint="fingerprint of a", seed=1, epoch=epoch).tolist()
    assert updates.fingerprint == "whole"
    golden = MixOrder((8,), ("abc",), (8,)).epoch(0, seed=42)
    assert golden.tolist() == [2, 1, 7, 4, 3, 5, 0, 6]


def test_the_order_of_a_mix_is_a_known_one() -> None:
    # A change of these numbers would silently reorder the data of every run on a mix that is resumed.
    order = MixOrder((6, 3), ("abc", "def"), (6, 6))
    assert [order.epoch(epoch, seed=42).tolist() for epoch in (0, 1)] == GOLDEN


GOLDEN = [[2, 8, 6, 1, 4, 7, 3, 6, 5, 8, 0, 7], [6, 3, 1, 8, 5, 7, 8, 2, 7, 4, 0, 6]]


@pytest.mark.parametrize("weights", [(0.5, 0.3, 0.2), (0.9, 0.09, 0.01)])
def test_a_share_holds_over_each_stretch_of_100_updates(weights: tuple[float, ...]) -> None:
    sizes = (3000, 9000, 8000)
    given = rules(**{name: {"weight": weight} for name, weight in zip("abc", weights, strict=True)})
    updates = sequence(sizes, given, size=16, epochs=2)
    sets = np.searchsorted(np.cumsum(sizes), updates_in_order(updates), side="right")
    upto = np.stack([np.append(0, np.cumsum(sets == index)) for index in range(3)])
    stretch = 100 * 16
    counts = upto[:, stretch:] - upto[:, :-stretch]
    assert np.abs(counts - np.asarray(weights)[:, None] * stretch).max() <= 4


def updates_in_order(updates: UpdateSequence) -> Int64s:
    return np.concatenate([updates.window(update).sample_ids for update in range(updates.total_updates)])


def test_neighbours_are_of_no_fixed_pattern() -> None:
    """The interleaving is even, and yet random: which set is next is no function of the place."""
    sets = MixOrder((500, 500), ("a", "b"), (500, 500)).epoch(0, seed=1) >= 500
    assert 0.2 < float((sets[1:] == sets[:-1]).mean()) < 0.55
    assert not np.array_equal(sets, MixOrder((500, 500), ("a", "b"), (500, 500)).epoch(1, seed=1) >= 500)


def test_what_an_update_belongs_to() -> None:
    plain, weighted = sequence((10, 30), {}), sequence((10, 30), rules(a={"weight": 3}, b={"weight": 1}))
    assert plain.fingerprint == "whole" and weighted.fingerprint != "whole"
    assert sequence((10, 30), rules(a={"samples": 30}, b={"samples": 10})).fingerprint == weighted.fingerprint


def test_a_mix_is_found_by_seek() -> None:
    """F10: update after update, or one far away first."""
    given = rules(a={"samples": 17}, b={"epochs": 0.5})
    updates, other = (sequence((10, 30), given, epochs=40) for _ in range(2))
    last = updates.total_updates - 1
    assert other.window(last).sample_ids.tolist() == [updates.window(update).sample_ids for update in range(last + 1)][-1].tolist()
    assert [windows.first_update for windows in updates.by_epoch()] == [4 * epoch for epoch in range(40)]
    everything = np.concatenate([windows.order for windows in updates.by_epoch()])
    assert everything.tolist() == updates_in_order(updates).tolist()


def a_set(path: Path, lengths: list[int], weight: float = 1.0) -> str:
    ids = [np.arange(length, dtype=np.int32) for length in lengths]
    spans = [[(length - 2, length)] for length in lengths]
    counts = Counts(rows=len(lengths), tokens=sum(lengths), supervised_tokens=2 * len(lengths))
    write_samples(path, ids, spans, list(range(1, len(lengths) + 1)), counts, weights=[[weight]] * len(lengths))
    return str(path)


def test_several_sets_as_one(tmp_path: Path) -> None:
    paths = {"a": a_set(tmp_path / "a", [3, 4, 5]), "b": a_set(tmp_path / "b", [6, 7], weight=0.5)}
    mix, alone = SampleMix.open(paths), SampleSet.open(paths["b"])
    assert len(mix) == 5 and mix.names == ("a", "b") and mix.sizes == (3, 2)
    assert mix.lengths.tolist() == [3, 4, 5, 6, 7] and mix.rows.tolist() == [1, 2, 3, 1, 2] and mix.set_of.tolist() == [0, 0, 0, 1, 1]
    assert mix.supervised.tolist() == [2] * 5 and mix.weight_sums.tolist() == [2, 2, 2, 1, 1] and mix.is_weighted
    assert mix.sample(4).ids.tolist() == list(range(7)) == alone.sample(1).ids.tolist() and mix.sample(0).row == 1 and mix.highest_id() == 6
    assert counts_by_set(mix, np.asarray([0, 4, 4])) == {"a": (1, 3, 2), "b": (2, 14, 4)}
    assert counts_by_set(mix, np.asarray([1])) == {"a": (1, 4, 2), "b": (0, 0, 0)}
    assert supervised_share_of(mix) == 10 / 25
    other_way = SampleMix.open(dict(reversed(paths.items())))
    assert len({mix.fingerprint, other_way.fingerprint, *mix.fingerprints}) == 4


def test_a_single_set_is_itself(tmp_path: Path) -> None:
    path = a_set(tmp_path / "a", [3, 4])
    mix, alone = SampleMix.open({"train": path}), SampleSet.open(path)
    assert mix.fingerprint == alone.fingerprint and not mix.is_weighted
    assert mix.lengths.tolist() == alone.lengths.tolist() and mix.weight_sums.tolist() == alone.weight_sums.tolist()
