"""The cursor: no rank in it, seek instead of replay, exact at the ends of epochs, and refused on other data."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from ftcore.batch.cursor import Cursor
from ftcore.batch.data_identity import DataIdentity
from ftcore.batch.heaviest import heaviest_steps
from ftcore.batch.window import UpdateSequence
from ftcore.data.cache import Counts, Sample, SampleSet, write_samples
from ftcore.data.mix import SampleMix
from ftcore.dist import Ranks
from ftcore.feed.layout import Layout
from ftcore.feed.planned import PlannedFeeder
from ftcore.spec.errors import CheckpointError
from ftcore.spec.sections import BatchSection, TrainSection

ONE = DataIdentity(fingerprint="a" * 64, sets={"train": "a" * 64}, draws={"train": 10})


def write_set(path: Path, lengths: list[int], seed: int = 0) -> str:
    random = np.random.default_rng(seed)
    ids = [random.integers(3, 90, size=length).astype(np.int32) for length in lengths]
    spans = [[(length // 2, length)] for length in lengths]
    counts = Counts(rows=len(lengths), tokens=sum(lengths), supervised_tokens=sum(length - max(1, length // 2) for length in lengths))
    write_samples(path, ids, spans, list(range(1, len(lengths) + 1)), counts)
    return str(path)


class CountedMix(SampleMix):
    """Counts the samples that are read."""

    reads = 0

    def sample(self, index: int) -> Sample:
        self.reads += 1
        return super().sample(index)


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> CountedMix:
    random = np.random.default_rng(1)
    path = write_set(tmp_path_factory.mktemp("data") / "a.arrow", [int(length) for length in random.integers(3, 40, size=101)])
    return CountedMix({"train": SampleSet.open(path)})


def sequence_of(mix: SampleMix, *, by_tokens: bool = False, epochs: float | None = None, steps: int | None = None) -> UpdateSequence:
    batch = BatchSection(tokens_per_update=200, global_batch_size=None) if by_tokens else BatchSection(global_batch_size=8)
    return UpdateSequence(mix, batch=batch, train=TrainSection(num_train_epochs=epochs, max_steps=steps, seed=5))


def feeder_of(mix: SampleMix, sequence: UpdateSequence, *, world_size: int = 1, rank: int = 0, ahead: int = 0, layout: str = "packed") -> PlannedFeeder:
    how = Layout(micro_batch_tokens=80, attention_share=0.001, layout=layout)
    return PlannedFeeder(mix, sequence, how, Ranks(rank, world_size, rank, torch.device("cpu")), ahead=ahead)


def samples_of(mix: SampleMix, sequence: UpdateSequence, updates: range, world_size: int) -> list[list[int]]:
    """The samples of each update, as all ranks together compute them."""
    feeders = [feeder_of(mix, sequence, world_size=world_size, rank=rank) for rank in range(world_size)]
    fed = [[feeder.next(update) for feeder in feeders] for update in updates]
    return [sorted(int(sample) for of_rank in ranks for part in of_rank.parts for sample in part) for ranks in fed]  # type: ignore[union-attr]


@pytest.mark.parametrize("by_tokens", [False, True], ids=["samples", "tokens"])
@pytest.mark.parametrize("epochs", [2.0, 2.5, 0.3])
def test_any_update_is_found_by_seek(by_tokens: bool, epochs: float, mix: CountedMix) -> None:
    """At the last update of an epoch, the first of the next and everywhere else, on any number of ranks: what follows is what an unbroken run has."""
    unbroken = sequence_of(mix, by_tokens=by_tokens, epochs=epochs)
    whole = samples_of(mix, unbroken, range(unbroken.total_updates), 1)
    windows = [unbroken.window(update) for update in range(unbroken.total_updates)]
    ends = [update for update in range(1, len(windows)) if windows[update].epoch != windows[update - 1].epoch]
    for start in {0, len(windows) - 1, *ends, *(end - 1 for end in ends)}:
        for world_size in (1, 2, 3):
            again = sequence_of(mix, by_tokens=by_tokens, epochs=epochs)
            assert samples_of(mix, again, range(start, again.total_updates), world_size) == whole[start:]
    for epoch in range(math.floor(epochs)):
        trained = sorted(sample for window, ids in zip(windows, whole, strict=True) if window.epoch == epoch for sample in ids)
        assert trained == list(range(101)), "each sample once an epoch, the short last window included"


def test_the_epoch_of_the_next_update(mix: CountedMix) -> None:
    sequence = sequence_of(mix, epochs=2.0)
    feeder = feeder_of(mix, sequence)
    last = feeder.next(12)
    assert last is not None and (last.epoch, last.epoch_after, last.counts.samples, last.epoch_progress) == (0, 1, 5, 1.0)
    end = feeder.next(25)
    assert end is not None and (end.epoch, end.epoch_after) == (1, 1)
    assert feeder.next(26) is None


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_late_start_reads_no_more_than_an_early_one(ahead: int, mix: CountedMix) -> None:
    """F10: at 99 % of a million updates only the samples of the next updates are read."""
    reads = []
    for update in (0, 990_000):
        sequence = sequence_of(mix, steps=1_000_000)
        feeder = feeder_of(mix, sequence, ahead=ahead)
        mix.reads = 0
        fed = feeder.next(update)
        feeder.close()
        assert fed is not None and mix.reads <= (1 + ahead + 1) * 8
        reads.append(fed.counts.samples)
    assert reads == [8, 8]


def test_ahead_feeds_the_same(mix: CountedMix) -> None:
    sequence = sequence_of(mix, epochs=1.0)
    plain, ahead = feeder_of(mix, sequence), feeder_of(mix, sequence, ahead=3)
    for update in (0, 1, 2, 7, 8, 3, 12):
        one, other = plain.next(update), ahead.next(update)
        assert one is not None and other is not None and ahead.wait_s >= 0
        assert (one.weight_sum, one.counts, one.longest) == (other.weight_sum, other.counts, other.longest)
        for batch, same in zip(one.batches, other.batches, strict=True):
            assert torch.equal(batch.input_ids_BT, same.input_ids_BT) and torch.equal(batch.targets_K, same.targets_K)
    ahead.close()


@pytest.mark.parametrize(("layout", "computed"), [("packed", 10), ("padded", 14)])
def test_padding_is_no_token(layout: str, computed: int, tmp_path: Path) -> None:
    """L05: lengths 3 and 7 are 10 tokens; padded to 7, 14 are computed."""
    mix = SampleMix.open({"train": write_set(tmp_path / "a.arrow", [3, 7])})
    fed = feeder_of(mix, sequence_of(mix, steps=1), layout=layout).next(0)
    assert fed is not None and (fed.counts.tokens, fed.computed_tokens) == (10, computed)
    assert sum(batch.tokens for batch in fed.batches) == computed


def test_counts_of_each_set(tmp_path: Path) -> None:
    mix = SampleMix.open({"a": write_set(tmp_path / "a.arrow", [10] * 30), "b": write_set(tmp_path / "b.arrow", [20] * 10)})
    sequence = sequence_of(mix, epochs=1.0)
    cursor = Cursor.at_start(DataIdentity(fingerprint="f", sets={}), 5)
    for update in range(sequence.total_updates):
        fed = feeder_of(mix, sequence).next(update)
        assert fed is not None and fed.by_set["a"] + fed.by_set["b"] == fed.counts and set(fed.by_set) == {"a", "b"}
        by_set = {name: dataclasses.asdict(counts) for name, counts in fed.by_set.items()}
        cursor = cursor.advance(epoch=0, stepped=True, **dataclasses.asdict(fed.counts), by_set=by_set)
    assert cursor.seen_by_set == {
        "a": {"samples": 30, "tokens": 300, "supervised_tokens": 150},
        "b": {"samples": 10, "tokens": 200, "supervised_tokens": 100},
    }
    assert Cursor.from_json(cursor.to_json()) == cursor


def test_a_cursor_of_an_earlier_version_is_read() -> None:
    values = json.loads(Cursor.at_start(ONE, 1).to_json())
    for name in ("data_sets", "data_draws", "seen_by_set", "stream"):
        del values[name]
    old = Cursor.from_json(json.dumps(values))
    assert (old.data_sets, old.seen_by_set, old.stream) == ({}, {}, None)
    old.require_same(ONE, 1)
    with pytest.raises(CheckpointError, match=r"data.train: the training data changed .*\(fingerprint aaaaaaaaaaaa then, bbbbbbbbbbbb now\)"):
        old.require_same(DataIdentity(fingerprint="b" * 64, sets={"train": "b" * 64}), 1)


def test_every_set_that_changed_is_named() -> None:
    before = DataIdentity(fingerprint="1", sets={"train": "a" * 64, "b": "b" * 64, "c": "c" * 64, "d": "d" * 64}, draws={"train": 5, "b": 5, "c": 5, "d": 5})
    after = DataIdentity(fingerprint="2", sets={"train": "e" * 64, "b": "b" * 64, "d": "d" * 64, "n": "f" * 64}, draws={"train": 5, "b": 9, "d": 5, "n": 5})
    with pytest.raises(CheckpointError) as caught:
        Cursor.at_start(before, 1).require_same(after, 2)
    told = [(problem.where, problem.what) for problem in caught.value.problems]
    assert told == [
        ("data.train", "the set train changed since the checkpoint was written (fingerprint aaaaaaaaaaaa then, eeeeeeeeeeee now)"),
        ("data.train_sets.b", "an epoch draws 9 samples of the set b, and drew 5 when the checkpoint was written"),
        ("data.train_sets.c", "the set c is gone since the checkpoint was written (fingerprint cccccccccccc then)"),
        ("data.train_sets.n", "the set n was added since the checkpoint was written (fingerprint ffffffffffff now)"),
        ("train.seed", "train.seed is 2, the checkpoint was written with 1"),
    ]
    assert "--allow-data-change" in caught.value.problems[3].fix
    Cursor.at_start(before, 1).require_same(after, 1, other_data=True)


def test_on_other_data_counts_stay_and_a_streams_position_goes() -> None:
    cursor = dataclasses.replace(Cursor.at_start(ONE, 1), next_update=7, steps_taken=6, samples_seen=70, stream={"lanes": []})
    other = DataIdentity(fingerprint="b" * 64, sets={"x": "b" * 64}, draws={"x": 3})
    moved = cursor.on(other)
    assert (moved.next_update, moved.steps_taken, moved.samples_seen, moved.stream, moved.data) == (7, 6, 70, None, other)
    assert cursor.on(ONE) == cursor


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_the_heaviest_micro_steps_are_those_of_the_whole_run(layout: str, mix: CountedMix) -> None:
    sequence = sequence_of(mix, epochs=2.0)
    how = {"world_size": 2, "micro_batch_tokens": 80, "attention_share": 0.001}
    steps = heaviest_steps(sequence, mix.lengths, mix.supervised, layout=layout, **how)  # type: ignore[arg-type]
    every = [
        batch
        for rank in range(2)
        for update in range(sequence.total_updates)
        for batch in feeder_of(mix, sequence, world_size=2, rank=rank, layout=layout).next(update).batches  # type: ignore[union-attr]
    ]
    assert steps[0].tokens == max(batch.tokens for batch in every)
    assert max(step.supervised_tokens for step in steps) == max(batch.supervised_tokens for batch in every)
    for step in steps:
        assert int(mix.supervised[step.sample_ids].sum()) == step.supervised_tokens and int(mix.lengths[step.sample_ids].max()) == step.longest
        assert set(step.sample_ids.tolist()) <= set(sequence.window(step.update).sample_ids.tolist())
