"""Updates of a stream over ranks: the same for any number of them, and after a stop at any update on any other number."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcore.data.stream_source import Shard
from ftcore.spec.errors import CheckpointError, DataError, SpecError
from ftcore.stream.course import Course, Exchange, Made
from ftcore.stream.offers import Offers
from ftcore.stream.position import restored
from ftcore.stream.reader import StreamReader
from ftcore.stream.state import Place
from tests.unit.stream_ranks import NumberedRows, ReadUpdate, Row, course, make, on_ranks, read_updates, samples_of

FILES = (23, 0, 17, 41, 8, 30, 12)


def all_ids(files: tuple[int, ...]) -> list[int]:
    samples = [sample for file, count in enumerate(files) for row in range(count) for sample in samples_of((file, row))]
    return sorted(file * 10_000 + position * 10 + number for file, position, number in samples)


def ids_of(updates: Sequence[ReadUpdate]) -> list[int]:
    return [sample for update in updates for sample in update[0]]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=7).map(tuple),
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([(1, None), (5, None), (None, 8), (None, 23)]),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.integers(0, 8),
)
def test_the_same_updates_on_any_ranks_after_a_stop(
    files: tuple[int, ...], lanes: int, buffer: int, size: tuple[int | None, int | None], worlds: tuple[int, int], stop: int
) -> None:
    """E06, E07: each sample once, none twice, the same updates for any number of ranks before and after."""
    run = course(files, lanes, buffer=buffer, samples=size[0], tokens=size[1])
    if not all_ids(files):
        with pytest.raises(DataError, match="no row of an epoch can be trained on: "):
            read_updates(run, files, worlds[0])
        return
    whole, end, _ = read_updates(run, files, 1)
    assert sorted(ids_of(whole)) == all_ids(files)
    dropped = sum((Counter(counted) for _, _, counted, _ in whole), Counter())
    assert dropped["overlong"] == sum(not samples_of((at, row)) for at, count in enumerate(files) for row in range(count))
    before, position, _ = read_updates(run, files, worlds[0], updates=stop)
    after, last, _ = read_updates(run, files, worlds[1], position=position)
    assert before + after == whole and last == end


def test_updates_are_full_but_the_last_of_an_epoch() -> None:
    """E09: lanes that end leave the others going on; one that ends within an update costs one more sum over the ranks."""
    run = course(FILES, 4, repeat=True)
    updates, _, rounds = read_updates(run, FILES, 3, updates=80)
    per_epoch = -(-len(all_ids(FILES)) // 5)
    sizes = [len(ids) for ids, *_ in updates[: 2 * per_epoch]]
    assert sizes[: per_epoch - 1] == [5] * (per_epoch - 1) and sizes[per_epoch - 1] == len(all_ids(FILES)) - 5 * (per_epoch - 1)
    assert [epoch for *_, epoch in updates[: 2 * per_epoch]] == [0] * per_epoch + [1] * per_epoch
    epochs = [ids_of(updates[at * per_epoch : (at + 1) * per_epoch]) for at in range(2)]
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1]) == all_ids(FILES)
    assert rounds <= 80 + 4 * (80 // per_epoch + 1)


def test_lanes_without_a_shard_and_more_ranks_than_lanes() -> None:
    run = course((9, 4), 3)
    assert read_updates(run, (9, 4), 4)[0] == read_updates(run, (9, 4), 1)[0]


def weighted(*, repeat: bool) -> tuple[tuple[int, ...], Course]:
    files = (40, 60)
    shards = tuple((Shard(file=index, start=0, end=None, size=count),) for index, count in enumerate(files))
    return files, dataclasses.replace(course(files, 2, repeat=repeat, samples=10), shards=shards, weights=(3.0, 1.0))


def test_a_weighted_mix_keeps_its_shares_and_each_set_its_own_epochs() -> None:
    files, run = weighted(repeat=True)
    updates, position, _ = read_updates(run, files, 2, updates=40)
    shares = [sum(sample < 10_000 for sample in ids) for ids, *_ in updates]
    assert set(shares) == {7, 8} and sum(shares) == 300 and all(len(ids) == 10 for ids, *_ in updates)
    whole, _, _ = read_updates(run, files, 1, updates=60)
    assert updates + read_updates(run, files, 3, updates=20, position=position)[0] == whole
    first = [sample for sample in ids_of(updates) if sample < 10_000][: len(all_ids((40,)))]
    assert sorted(first) == all_ids((40,))


def test_rows_without_a_sample_are_counted_where_an_epoch_ends_within_an_update() -> None:
    files, run = weighted(repeat=True)
    run = dataclasses.replace(run, weights=(2.0, 3.0), samples=7)
    # 120 samples an epoch of both sets, as 48 and 72: seven epochs of each, and no update but the last ends with one.
    updates, _, _ = read_updates(run, files, 2, updates=120)
    assert Counter(ids_of(updates)) == Counter(dict.fromkeys(all_ids(files), 7))
    assert sum((Counter(dropped) for _, _, dropped, _ in updates), Counter()) == Counter(overlong=7 * sum(files) // 5)


def test_a_weighted_mix_that_does_not_repeat_ends_with_its_first_set() -> None:
    files, run = weighted(repeat=False)
    updates, _, _ = read_updates(run, files, 2)
    ids = ids_of(updates)
    assert sorted(sample for sample in ids if sample < 10_000) == all_ids((40,)) and len(set(ids)) == len(ids)


def test_a_bad_row_stops_all_ranks_with_its_place() -> None:
    files = (9, 9, 9, 9, 9, 9, 9, 20)
    with pytest.raises(DataError, match="a bad row"):
        read_updates(course(files, 4), files, 3)


def test_a_file_that_cannot_be_read_stops_all_ranks() -> None:
    class Gone(NumberedRows):
        def read(self, file: int, position: int, end: int | None) -> Iterator[tuple[int, int, Row]]:
            raise OSError("no such device")

    def work(rank: int, exchange: Exchange) -> None:
        StreamReader(course((5, 5), 2), Gone((5, 5)), make, exchange, (rank, 2), None).next()

    assert ["no such device" in str(error) for error in on_ranks(2, work)] == [True, True]


def test_a_tokenizer_that_one_rank_lacks_stops_all_ranks() -> None:
    def lacks(rows: Sequence[tuple[Place, Any]]) -> list[Made]:
        raise SpecError("no tokenizer there")

    def work(rank: int, exchange: Exchange) -> None:
        StreamReader(course((5, 5), 2), NumberedRows((5, 5)), lacks if rank else make, exchange, (rank, 2), None).next()

    assert ["no tokenizer there" in str(error) for error in on_ranks(2, work)] == [True, True]


def test_a_sample_that_fits_nothing_is_refused() -> None:
    run = dataclasses.replace(course((9,), 1), micro_batch_tokens=5)
    with pytest.raises(DataError, match="more than micro_batch_tokens 5"):
        read_updates(run, (9,), 2)
    with pytest.raises(DataError, match="more than tokens_per_update 6"):
        read_updates(course((9,), 1, samples=None, tokens=6), (9,), 2)


def test_a_position_of_another_stream_is_refused() -> None:
    _, position, _ = read_updates(course(FILES, 4), FILES, 1, updates=2)
    for lanes, wrong in ((3, json.loads(position)), (4, {"groups": []}), (4, {"groups": [{}], "lanes": []}), (4, {"groups": 3, "lanes": 4})):
        with pytest.raises(CheckpointError, match="not a position of this stream"):
            restored(course(FILES, lanes), wrong)


def test_too_many_rows_without_a_sample_are_told() -> None:
    offers = Offers.empty(1, 1)
    offers.offer(0, [], ended=True, behind=Counter(overlong=(1 << 20) - 1, bad_row=2))
    assert offers.dropped(np.zeros(0, dtype=np.int64)) == Counter(overlong=(1 << 20) - 1, bad_row=2)
    with pytest.raises(DataError, match="1048576 rows one after another gave no sample: overlong"):
        offers.offer(0, [], ended=True, behind=Counter(overlong=1 << 20))
