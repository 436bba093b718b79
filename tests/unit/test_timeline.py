"""One rank's time cut at phases and collectives, on a clock that a test moves."""

from __future__ import annotations

from typing import Any

import pytest

from ftcore.attribution.exchange import FACTS, from_rows, more_slots, to_row
from ftcore.attribution.phases import BACKWARD, BUSY, CHECKPOINT, DATA_WAIT, EVALUATION, FORWARD, OPTIMIZER
from ftcore.attribution.timeline import MOST_MARKS, Stretch, Timeline
from ftcore.attribution.told import Told, ToldPhases

SLOTS = (8, 4, 4)


class MovedClock:
    """Stands still until it is moved."""

    def __init__(self, now: float = 100.0) -> None:
        self.now, self.held, self.aside, self.unread = now, 0.0, False, 0

    def mark(self) -> Any:
        return self.now, self.held

    def seconds(self, mark: Any) -> float:
        return float(mark[0])

    def held_up(self, mark: Any) -> float:
        return float(mark[1])

    def is_past(self, mark: Any) -> bool:
        return self.unread == 0

    def is_aside(self) -> bool:
        return self.aside

    def finish(self) -> None:
        self.unread = 0

    def settle(self) -> None:
        pass


class Rank:
    """A timeline and the clock that moves it."""

    def __init__(self, now: float = 100.0, slots: tuple[int, ...] = SLOTS) -> None:
        self.clock = MovedClock(now)
        self.line = Timeline(self.clock, 2, slots)

    def work(self, phase: int, seconds: float, held: float = 0.0) -> None:
        self.line.switch(phase)
        self.clock.now += seconds
        self.clock.held += held

    def block(self, seconds: float, *, of_all: bool = True, synchronises: bool = True) -> None:
        began = self.line.mark()
        self.clock.now += seconds
        self.line.blocked(began, of_all_ranks=of_all, synchronises=synchronises)

    def busy(self, stretch: Stretch) -> dict[str, float]:
        return {name: seconds for name, seconds in zip(BUSY, stretch.busy, strict=True) if seconds}


def tell(ranks: list[Rank], clocks: tuple[str, ...] = ("a", "a")) -> ToldPhases:
    stretches = [rank.line.cut() for rank in ranks]
    return _told(stretches, clocks).phases


def _told(stretches: list[Stretch], clocks: tuple[str, ...] = ("a", "a"), values: tuple[float, ...] = ()) -> Any:
    import numpy as np

    rows = np.stack([to_row(stretch, values, cost=7.0, updates=1) for stretch in stretches])
    told, _ = from_rows(rows, len(values), stretches[0], hosts=("one", "two"), clocks=clocks)
    return told


def test_phases_are_disjoint_and_whole() -> None:
    rank = Rank()
    rank.work(DATA_WAIT, 1.0)
    rank.work(FORWARD, 2.0, held=0.5)
    rank.block(0.25)
    rank.clock.now += 0.5
    rank.work(OPTIMIZER, 4.0)
    stretch = rank.line.cut()
    assert rank.busy(stretch) == {"data_wait": 1.0, "forward": 2.5, "optimizer": 4.0}
    assert stretch.blocked[0][0] == 0.25
    assert stretch.seconds == 7.75
    assert stretch.held_up[FORWARD] == 0.5


def test_stretches_follow_each_other_without_a_gap() -> None:
    rank = Rank()
    rank.work(FORWARD, 2.0)
    first = rank.line.cut()
    rank.clock.now += 1.0
    rank.work(BACKWARD, 3.0)
    second = rank.line.cut()
    assert (first.seconds, second.seconds) == (2.0, 4.0)
    assert second.began == first.began + first.seconds
    assert rank.busy(second) == {"forward": 1.0, "backward": 3.0}


def test_a_launched_collective_blocks_in_its_wait_alone() -> None:
    rank = Rank()
    rank.line.switch(FORWARD)
    launch = rank.line.launched(rank.line.mark(), of_all_ranks=True)
    rank.clock.now += 2.0
    began = rank.line.mark()
    rank.clock.now += 0.5
    rank.line.waited(launch, began)
    stretch = rank.line.cut()
    assert rank.busy(stretch) == {"forward": 2.0}
    assert (stretch.came[0], stretch.waits_from[0], stretch.waited[0]) == (100.0, 102.0, 0.5)
    assert not stretch.synchronises[0]


def test_a_wait_in_a_later_stretch_is_communication() -> None:
    rank = Rank()
    launch = rank.line.launched(rank.line.mark(), of_all_ranks=True)
    rank.line.cut()
    began = rank.line.mark()
    rank.clock.now += 0.5
    rank.line.waited(launch, began)
    stretch = rank.line.cut()
    assert stretch.elsewhere == 0.5 == stretch.seconds
    assert sum(stretch.waited) == 0.0


def test_another_queue_never_blocks() -> None:
    """On an accelerator gradients are reduced in a stream beside the backward pass."""
    rank = Rank()
    rank.line.switch(BACKWARD)
    rank.clock.aside = True
    rank.block(0.5)
    rank.clock.aside = False
    rank.line.waited((0, 0), rank.line.mark())
    stretch = rank.line.cut()
    assert rank.busy(stretch) == {"backward": 0.5}
    assert stretch.came[0] == 100.0
    assert stretch.counts == [1, 0, 0]


def test_marks_are_added_up_when_they_are_many_and_past() -> None:
    rank = Rank()
    rank.clock.unread = 1
    for _ in range(MOST_MARKS):
        rank.work(FORWARD, 1.0)
    assert len(rank.line._marks) > MOST_MARKS, "nothing is past yet, and nothing may wait for it"
    rank.clock.unread = 0
    rank.work(BACKWARD, 1.0)
    assert len(rank.line._marks) == 0
    stretch = rank.line.cut()
    assert rank.busy(stretch) == {"forward": float(MOST_MARKS), "backward": 1.0}


def test_the_late_rank_and_its_phase() -> None:
    early, late = Rank(), Rank()
    for rank, data in ((early, 0.1), (late, 0.6)):
        rank.work(DATA_WAIT, data)
        rank.work(FORWARD, 1.0)
        rank.block(1.71 - data - 1.0 + 0.0)
    told = tell([early, late])
    assert early.clock.now == late.clock.now
    assert told.ranks[0].phases["idle"] == pytest.approx(0.5)
    assert told.ranks[0].phases["communication"] == pytest.approx(0.11)
    assert told.ranks[1].caused_idle_seconds == pytest.approx(0.5)
    assert told.ranks[1].late_phase == "data_wait"
    assert told.ranks[0].late_phase == ""
    assert told.slowest is not None and (told.slowest.rank, told.slowest.host, told.slowest.phase) == (1, "two", "data_wait")
    assert told.slowest.share == pytest.approx(0.5 / 1.71)
    for each in told.ranks:
        assert sum(each.phases.values()) == pytest.approx(each.phase_seconds, rel=1e-9)


@pytest.mark.parametrize("shift", [0.0, 3600.0])
def test_hosts_with_clocks_of_their_own(shift: float) -> None:
    early, late = Rank(), Rank(100.0 + shift)
    for rank, work in ((early, 0.1), (late, 0.4)):
        for _ in range(6):
            rank.work(FORWARD, work)
            rank.block(0.41 - work)
    told = tell([early, late], clocks=("a", "b"))
    assert told.ranks[1].caused_idle_seconds == pytest.approx(1.8, abs=1e-3)
    assert told.ranks[0].caused_idle_seconds == pytest.approx(0.0, abs=1e-3)


def test_hosts_without_a_common_collective_charge_nobody() -> None:
    ranks = [Rank(), Rank(500.0)]
    for rank in ranks:
        rank.block(0.1, synchronises=False)
    told = tell(ranks, clocks=("a", "b"))
    assert [each.phases["communication"] for each in told.ranks] == pytest.approx([0.1, 0.1])
    assert told.slowest is None


def test_checkpoints_and_evaluations_are_charged_apart() -> None:
    early, late = Rank(), Rank()
    for rank, saved, scored in ((early, 0.2, 0.1), (late, 0.3, 0.6)):
        rank.work(CHECKPOINT, saved)
        rank.block(0.31 - saved)
        rank.work(EVALUATION, scored)
        rank.block(0.61 - scored)
    told = tell([early, late]).ranks[1]
    assert told.caused_by_phase == pytest.approx({"checkpoint": 0.1, "evaluation": 0.5})
    assert told.late_phase == "evaluation"


def test_collectives_without_a_slot_are_charged_like_the_others() -> None:
    early, late = Rank(slots=(2, 2, 2)), Rank(slots=(2, 2, 2))
    for rank, work in ((early, 0.1), (late, 0.4)):
        for _ in range(6):
            rank.work(FORWARD, work)
            rank.block(0.5 - work)
    told = tell([early, late])
    assert told.ranks[0].phases["idle"] == pytest.approx(6 * 0.3)
    assert told.ranks[1].caused_idle_seconds == pytest.approx(6 * 0.3)


def test_ranks_that_started_other_collectives_are_not_compared() -> None:
    ranks = [Rank(), Rank()]
    for rank, times in zip(ranks, (2, 3), strict=True):
        for _ in range(times):
            rank.work(FORWARD, 0.1)
            rank.block(0.1)
    told = tell(ranks)
    assert [each.phases["idle"] for each in told.ranks] == [0.0, 0.0]
    assert told.slowest is None


def test_collectives_of_some_ranks_are_communication() -> None:
    rank = Rank()
    rank.block(0.5, of_all=False)
    stretch = rank.line.cut()
    assert (stretch.elsewhere, stretch.counts) == (0.5, [0, 0, 0])


def test_clocks_are_not_compared_by_what_went_on_in_another_queue() -> None:
    """Only its start is marked there, which each rank has at a time of its own."""
    early, late = Rank(), Rank(now=1000.0)
    for rank, work in ((early, 0.1), (late, 0.4)):
        rank.work(FORWARD, work)
        rank.clock.aside = True
        rank.block(0.0)
        rank.clock.aside = False
        rank.block(0.5 - work)
    told = tell([early, late], clocks=("a", "b"))
    assert told.ranks[0].phases["idle"] == pytest.approx(0.3)


def test_what_came_between_a_cut_and_more_room_still_tells_the_clocks() -> None:
    rank = Rank()
    rank.line.cut()
    rank.block(0.2)
    rank.line.make_room((16, 8, 8))
    rank.block(0.2, synchronises=False)
    assert rank.line.cut().synchronises[:3] == [True, False, False]


def test_sums_and_size_of_a_row() -> None:
    ranks = [Rank(), Rank()]
    stretches = [rank.line.cut() for rank in ranks]
    told: Told = _told(stretches, values=(1.5, 2.0))
    assert told.sums == [3.0, 4.0]
    assert len(to_row(stretches[0], (1.0,), cost=0.0, updates=0)) == 1 + FACTS + 3 * sum(SLOTS)


def test_slots_grow_with_what_was_seen_and_no_further() -> None:
    assert more_slots((8, 4, 4), (100, 2, 10**6)) == (126, 4, 256)
    assert more_slots((200, 4, 4), (100, 0, 0)) == (200, 4, 4)


def test_one_rank_waits_for_nobody() -> None:
    rank = Rank()
    rank.work(FORWARD, 1.0)
    rank.block(0.1)
    import numpy as np

    stretch = rank.line.cut()
    told, _ = from_rows(np.stack([to_row(stretch, (), cost=1.0, updates=1)]), 0, stretch, hosts=("one",), clocks=("a",))
    assert told.phases.slowest is None
    assert told.phases.phases["communication"] == pytest.approx(0.1)
