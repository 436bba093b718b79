"""Lanes of a stream: every row once an epoch, and the same order however the lanes are spread over ranks and wherever a run stops."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcore.data.stream_source import Shard
from ftcore.spec.errors import DataError
from ftcore.stream.draws import Draws, shard_order
from ftcore.stream.lane import Lane
from ftcore.stream.shards import deal_shards, lanes_without_shard
from ftcore.stream.state import LaneState
from ftcore.stream.turns import Group, Known, Wanted, cut_update, require_fit, samples_to_know
from tests.unit.stream_ranks import NumberedRows, Row, samples_of


class Reader:
    """All lanes, as W ranks would hold them, and their updates."""

    def __init__(self, files: Sequence[int], lanes: int, buffer: int, states: list[LaneState] | None = None, turn: int = 0, *, size: int) -> None:
        self.source = NumberedRows(files)
        shards = [Shard(file=index, start=0, end=None, size=count) for index, count in enumerate(files)]
        self.size, self.group = size, Group(first=0, lanes=lanes, turn=turn)
        states = states or [LaneState(lane=lane) for lane in range(lanes)]

        def shards_of(lane: int, epoch: int) -> list[Shard]:
            return deal_shards(shards, lanes, seed=5, epoch=epoch)[lane]

        self.lanes: list[Lane[Row, tuple[int, int, int]]] = [
            Lane(state=state, source=self.source, shards_of=partial(shards_of, state.lane), buffer_rows=buffer, seed=5) for state in states
        ]

    def update(self, ahead: int = 0) -> list[tuple[int, int, int]] | None:
        """The samples of the next update, or None at the end of the epoch; `ahead` more are made than needed."""
        wanted = 2 + ahead
        while True:
            for lane in self.lanes:
                while lane.ready < wanted and (drawn := lane.draw()) is not None:
                    lane.add(drawn, samples_of(drawn.row), Counter(rows=1))
            known = [Known(lengths=np.ones(len(lane.peek(wanted)), dtype=np.int64), ended=lane.is_drawn_out and lane.ready <= wanted) for lane in self.lanes]
            cut = cut_update(known, [self.group], Wanted(samples=self.size, tokens=None))
            if cut is not None:
                break
            wanted *= 2
        taken = {lane: iter(self.lanes[lane].take(int((cut.lanes == lane).sum()))) for lane in range(len(self.lanes))}
        (self.group,) = cut.groups
        return [next(taken[lane]) for lane in cut.lanes.tolist()] or None

    def epoch(self) -> list[list[tuple[int, int, int]]]:
        updates = []
        while (update := self.update()) is not None:
            updates.append(update)
        return updates

    def text(self) -> str:
        return json.dumps([lane.state.to_value() for lane in self.lanes])


def rest_of(lane: Lane[Row, tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The samples that a lane has left in its epoch, made of the rows that its position leaves; the lane itself stays as it is."""
    again = Lane(state=lane.state.copy(), source=lane.source, shards_of=lane.shards_of, buffer_rows=lane.buffer_rows, seed=lane.seed)
    rows = iter(again.draw, None)
    return [sample for drawn in rows for sample in samples_of(drawn.row)]


files = st.lists(st.integers(0, 23), min_size=1, max_size=9)


@settings(max_examples=150, deadline=None)
@given(files, st.integers(1, 6), st.integers(1, 9), st.integers(1, 7), st.data())
def test_every_row_once_and_the_same_order_after_a_stop(rows: list[int], lanes: int, buffer: int, size: int, data: st.DataObject) -> None:
    whole = Reader(rows, lanes, buffer, size=size)
    updates = whole.epoch()
    made = [sample for file, count in enumerate(rows) for at in range(count) for sample in samples_of((file, at))]
    assert sorted(sample for update in updates for sample in update) == sorted(made)
    assert all(len(update) == size for update in updates[:-1])
    stop = data.draw(st.integers(0, len(updates)))
    stopped = Reader(rows, lanes, buffer, size=size)
    for _ in range(stop):
        stopped.update(ahead=data.draw(st.integers(0, 5)))
    states = [LaneState.from_value(value) for value in json.loads(stopped.text())]
    resumed = Reader(rows, lanes, buffer, states, stopped.group.turn, size=size)
    assert resumed.source.picked <= lanes * buffer
    assert updates[:stop] + resumed.epoch() == updates
    assert resumed.text() == whole.text()


@settings(max_examples=60, deadline=None)
@given(files, st.integers(1, 6), st.integers(1, 9), st.integers(0, 12))
def test_what_lies_ready_is_not_in_the_position(rows: list[int], lanes: int, buffer: int, ahead: int) -> None:
    eager, lazy = (Reader(rows, lanes, buffer, size=3) for _ in range(2))
    for _ in range(4):
        assert eager.update(ahead) == lazy.update()
        for far, near in zip(eager.lanes, lazy.lanes, strict=True):
            if far.is_drawn_out and not far.ready:
                # One that has seen the end has left the rows behind its last sample, too.
                assert rest_of(near) == []
            else:
                assert far.state.to_value() == near.state.to_value()


def test_what_a_row_counts_is_counted_with_its_first_sample() -> None:
    reader = Reader([20], 1, 4, size=1)
    counted: Counter[str] = Counter()
    lane = reader.lanes[0]
    while True:
        reader_known = lane.ready
        while lane.ready < 2 and (drawn := lane.draw()) is not None:
            lane.add(drawn, samples_of(drawn.row), Counter(rows=1))
        if not lane.ready:
            break
        counted += lane.peek(1)[0][3]
        if lane.ready == 1 and lane.is_drawn_out:
            counted += lane.trailing
        lane.take(1)
        assert reader_known >= 0
    assert counted == Counter(rows=20) and lane.trailing == Counter()


def test_epochs_differ_and_a_lane_begins_anew() -> None:
    reader = Reader([9, 9, 9, 9], 2, 5, size=4)
    first = reader.epoch()
    for lane in reader.lanes:
        lane.begin(1)
    second = reader.epoch()
    assert first != second and sorted(chain(*first)) == sorted(chain(*second))


def test_a_buffer_of_one_row_keeps_the_order_of_the_file() -> None:
    reader = Reader([10], 1, 1, size=4)
    assert [sample[1] for update in reader.epoch() for sample in update if not sample[2]] == [at for at in range(10) if at % 5]


def test_draws_are_found_by_number() -> None:
    draws = Draws(seed=3, lane=1, epoch=2)
    forwards = [draws.below(number, 1000) for number in range(3000)]
    assert [Draws(seed=3, lane=1, epoch=2).below(number, 1000) for number in (0, 1023, 1024, 2999)] == [forwards[at] for at in (0, 1023, 1024, 2999)]
    assert abs(np.mean(forwards) - 500) < 20 and min(forwards) < 5 and max(forwards) > 994
    assert len({tuple(forwards[at : at + 4]) for at in range(2997)}) == 2997, "no stretch of draws comes again"
    others = [Draws(seed=4, lane=1, epoch=2), Draws(seed=3, lane=2, epoch=2), Draws(seed=3, lane=1, epoch=3)]
    assert all([other.below(number, 1000) for number in range(50)] != forwards[:50] for other in others)
    assert sorted(shard_order(40, seed=1, epoch=0).tolist()) == list(range(40))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 20), st.integers(0, 5))
def test_shards_are_dealt_whole_and_even(sizes: list[int], lanes: int, epoch: int) -> None:
    shards = [Shard(file=index, start=0, end=None, size=size) for index, size in enumerate(sizes)]
    dealt = deal_shards(shards, lanes, seed=1, epoch=epoch)
    assert sorted(shard.file for own in dealt for shard in own) == list(range(len(sizes)))
    held = [sum(max(1, shard.size) for shard in own) for own in dealt]
    assert max(held) - min(held) <= max(1, *sizes)
    assert lanes_without_shard(len(shards), lanes) == sum(not own for own in dealt)


def known(*lanes: tuple[list[int], bool]) -> list[Known]:
    return [Known(lengths=np.asarray(lengths, dtype=np.int64), ended=ended) for lengths, ended in lanes]


def test_an_update_by_tokens() -> None:
    lanes, group = known(([5, 6], False), ([7], True), ([4, 4, 4], False)), Group(first=0, lanes=3, turn=1)
    cut = cut_update(lanes, [group], Wanted(samples=None, tokens=20))
    assert cut is not None and cut.lanes.tolist() == [1, 2, 0, 2] and cut.tokens == 20 and cut.is_full and cut.ended is None
    assert cut.groups == (Group(first=0, lanes=3, turn=0, samples=4, drawn=4),)
    assert cut_update(lanes, [group], Wanted(samples=None, tokens=60)) is None
    last = cut_update(known(([5], True), ([], True)), [Group(first=0, lanes=2)], Wanted(samples=None, tokens=60))
    assert last is not None and last.lanes.tolist() == [0] and last.ended == 0 and not last.is_full
    with pytest.raises(DataError, match="a sample has 7 tokens, more than tokens_per_update 6"):
        require_fit(lanes[1].lengths, micro_batch_tokens=7, tokens_per_update=6)
    require_fit(lanes[1].lengths, micro_batch_tokens=7, tokens_per_update=None)


def test_an_update_by_samples_says_when_its_group_ends_with_it() -> None:
    group = Group(first=0, lanes=3)
    lanes = known(([1, 1], True), ([1], True), ([], True))
    cut = cut_update(lanes, [group], Wanted(samples=3, tokens=None))
    assert cut is not None and cut.lanes.tolist() == [0, 1, 0] and cut.is_full and cut.ended == 0
    assert cut_update(known(([1, 1], True), ([1], False)), [Group(first=0, lanes=2)], Wanted(samples=3, tokens=None)) is None
    assert samples_to_know(known(([], False), ([], True), ([], False)), [group], 5) == 4
