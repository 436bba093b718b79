"""Who waited in collectives, and for whom: arithmetic on arrivals made by hand, on clocks that differ too."""

from __future__ import annotations

import numpy as np
import pytest

from ftcore.attribution.charge import charge_waits, clock_offsets, excess, shares_of_phases
from ftcore.attribution.exchange import from_rows, to_row
from ftcore.attribution.phases import BUSY
from ftcore.attribution.timeline import Stretch

TRANSFER = 0.001


def synchronous(came: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(waits_from, waited) of collectives that block from the arrival to the last one's plus the transfer."""
    return came, came.max(axis=0) + TRANSFER - came


def test_waits_are_charged_to_the_last() -> None:
    came = np.array([[0.0, 1.0], [0.3, 1.0], [0.1, 1.4]])
    idle, caused = charge_waits(came, *synchronous(came), np.zeros(3))
    assert idle == pytest.approx(np.array([[0.3, 0.4], [0.0, 0.4], [0.2, 0.0]]))
    assert caused == pytest.approx(np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.8]]))
    assert idle.sum() == pytest.approx(caused.sum())


def test_what_is_overlapped_is_no_waiting() -> None:
    """Rank 0 launched early and came to its wait when rank 1 had launched: nothing is lost, however long the transfer takes."""
    came = np.array([[0.0], [0.5]])
    waits_from, waited = np.array([[0.6], [0.5]]), np.array([[0.2], [0.3]])
    idle, caused = charge_waits(came, waits_from, waited, np.zeros(2))
    assert idle.sum() == caused.sum() == 0.0


def test_only_the_blocked_part_of_a_launch_counts() -> None:
    came = np.array([[0.0], [0.5]])
    waits_from, waited = np.array([[0.4], [0.6]]), np.array([[0.15], [0.0]])
    idle, _ = charge_waits(came, waits_from, waited, np.zeros(2))
    assert idle[:, 0] == pytest.approx([0.1, 0.0])


def test_who_is_not_blocked_waits_for_nobody() -> None:
    """The root of a broadcast goes on before the others have come."""
    came = np.array([[0.0], [0.5]])
    idle, caused = charge_waits(came, came, np.array([[0.0001], [0.0]]), np.zeros(2))
    assert idle.sum() == pytest.approx(0.0001) == caused.sum()


@pytest.mark.parametrize("shift", [1e-3, -7.0, 86400.0])
def test_clocks_that_differ_change_nothing(shift: float) -> None:
    random = np.random.default_rng(1)
    came = np.cumsum(random.random((4, 40)) * 0.02, axis=1) + np.arange(40) * 0.1
    waits_from, waited = synchronous(came)
    # Ends scatter as scheduling makes them.
    waited = waited + random.exponential(2e-5, waited.shape)
    right = charge_waits(came, waits_from, waited, np.zeros(4))
    shifts = np.array([0.0, 0.0, shift, shift])
    clocks = ("a", "a", "b", "b")
    offsets = clock_offsets((waits_from + waited) + shifts[:, None], waited, clocks)
    assert offsets == pytest.approx(shifts, abs=2e-4)
    idle, caused = charge_waits(came + shifts[:, None], waits_from + shifts[:, None], waited, offsets)
    assert idle.sum(axis=1) == pytest.approx(right[0].sum(axis=1), abs=5e-3)
    assert caused.sum(axis=1) == pytest.approx(right[1].sum(axis=1), abs=5e-3)


def test_one_clock_is_never_estimated() -> None:
    assert clock_offsets(np.array([[0.0], [5.0]]), np.array([[1.0], [1.0]]), ("a", "a")).tolist() == [0.0, 0.0]


def test_long_transfers_do_not_mislead_the_clocks() -> None:
    """Ranks leave a long collective at different times; the short ones say what the clocks are."""
    came = np.tile(np.arange(40) * 1.0, (2, 1))
    waited = np.full((2, 40), 0.001)
    waited[0, 12:], waited[1, 12:] = 0.3, 0.6
    offsets = clock_offsets(came + waited + np.array([[0.0], [2.0]]), waited, ("a", "b"))
    assert offsets == pytest.approx([0.0, 2.0], abs=1e-9)


def test_clocks_are_unknown_without_a_collective() -> None:
    assert np.isnan(clock_offsets(np.zeros((2, 0)), np.zeros((2, 0)), ("a", "b"))[1])


def test_excess_is_over_the_median_of_the_others() -> None:
    busy = np.array([[1.0, 5.0], [1.0, 2.0], [1.2, 2.0], [0.9, 2.2]])
    assert excess(busy)[0] == pytest.approx([0.0, 3.0])
    assert excess(busy)[1] == pytest.approx([0.0, -0.2])
    assert excess(busy[:1]).tolist() == [[0.0, 0.0]]


def test_lateness_is_shared_out_by_what_was_longer() -> None:
    assert shares_of_phases(np.array([0.3, -0.1, 0.1])) == pytest.approx([0.75, 0.0, 0.25])
    assert shares_of_phases(np.array([-0.3, -0.1, -0.2])).tolist() == [0.0, 1.0, 0.0]


def stretch(*, came: float, waited: float, spilled: float, backward: float) -> Stretch:
    """Ten seconds in which the only collective with a slot is one of training; those for which none was left took `spilled` more."""
    busy = [0.0, 0.0, backward, *[0.0] * (len(BUSY) - 3)]
    return Stretch(
        began=0.0,
        seconds=10.0,
        busy=busy,
        held_up=[0.0] * len(BUSY),
        blocked=[[waited, spilled], [0.0, 0.0], [0.0, 0.0]],
        elsewhere=0.0,
        counts=[3, 0, 0],
        capacities=(1, 0, 0),
        came=[came],
        waits_from=[came],
        waited=[waited],
        synchronises=[True],
    )


def test_collectives_without_a_slot_are_charged_like_those_with_one() -> None:
    """Rank 0 waits 0.9 of the 1.0 s of its first collective for rank 2; of the 2 s of its others it is taken to wait 1.8."""
    of = [(0.0, 1.0, 2.0, 7.0), (0.5, 0.5, 0.0, 9.5), (0.9, 0.1, 0.2, 9.7)]
    stretches = [stretch(came=came, waited=waited, spilled=spilled, backward=busy) for came, waited, spilled, busy in of]
    rows = np.array([to_row(each, [1.5], cost=10.0, updates=2) for each in stretches])
    told, _ = from_rows(rows, 1, stretches[0], hosts=("a",) * 3, clocks=("a",) * 3)
    assert told.sums == [4.5] and told.phases is not None
    ranks = told.phases.ranks
    assert [each.phases["idle"] for each in ranks] == pytest.approx([2.7, 0.4, 0.0])
    assert [each.phases["communication"] for each in ranks] == pytest.approx([0.3, 0.1, 0.3])
    assert [each.caused_idle_seconds for each in ranks] == pytest.approx([0.0, 0.0, 3.1])
    assert all(sum(each.phases.values()) == pytest.approx(each.phase_seconds) for each in ranks)
    slowest = told.phases.slowest
    assert slowest is not None and (slowest.rank, slowest.phase) == (2, "backward") and slowest.share == pytest.approx(3.1 / 2 / 10)
