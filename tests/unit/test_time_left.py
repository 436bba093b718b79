"""The time left of a run: of its newest attempt, with what evaluations and checkpoints add, whatever the time between attempts."""

from __future__ import annotations

import pytest

from launcher.time_left import MOST_LINES, newest_attempt, seconds_left
from tests.unit.made_runs import line, old_line


def lines(*updates: int, attempt: int = 1, seconds: float = 2.0, **other: float) -> list[dict[str, object]]:
    return [line(update, attempt=attempt, time=1000.0 * attempt, seconds=seconds, total_updates=100, **other) for update in updates]


def test_updates_and_what_is_between_them() -> None:
    """2 seconds an update, half a second around each; an evaluation of 30 seconds in one of ten."""
    known = lines(*range(1, 10)) + lines(10, phase_seconds=32.5) + lines(11)
    assert seconds_left(lines(*range(1, 12))) == pytest.approx(89 * 2.5)
    assert seconds_left(known) == pytest.approx(89 * (2.0 + (9 * 0.5 + 30.5) / 10))


def test_the_first_update_of_an_attempt_is_slower() -> None:
    slow = lines(1, seconds=60.0)
    assert seconds_left(slow) == pytest.approx(99 * 60.5)
    assert seconds_left(slow + lines(2)) == pytest.approx(98 * 2.5)


def test_a_resume_begins_anew() -> None:
    """It has other ranks, and went back: neither the old speed nor the hours between count."""
    resumed = lines(1, 2, 3) + lines(3, 4, 5, attempt=2, seconds=1.0)
    assert seconds_left(resumed) == pytest.approx(95 * 1.5)
    assert [each["update"] for each in newest_attempt(resumed)] == [3, 4, 5]
    old = [{**old_line(update), "total_updates": 100} for update in (1, 2, 3, 2, 3)]
    assert [each["update"] for each in newest_attempt(old)] == [2, 3] and seconds_left(old) == pytest.approx(97 * 2.0)


def test_as_fast_as_of_late() -> None:
    assert seconds_left(lines(*range(1, 40), seconds=9.0) + lines(*range(40, 60), seconds=1.0)) == pytest.approx(41 * 1.5)
    assert seconds_left(lines(*range(1, 99)) * MOST_LINES) is not None


def test_lines_of_several_updates() -> None:
    ten = {"phase_updates": 10, "window_train_seconds": 20.0, "phase_seconds": 30.0}
    assert seconds_left(lines(10, 20, 30, **ten)) == pytest.approx(70 * 3.0)


@pytest.mark.parametrize("known", [[], [{}], [{"update": 3}], [{"update": 3, "total_updates": 9}], [{**old_line(8), "seconds": "nan"}], [{**old_line(12)}]])
def test_nothing_is_known(known: list[dict[str, object]]) -> None:
    assert seconds_left(known) is None


def test_the_last_update() -> None:
    assert seconds_left(lines(99, 100)) == 0.0
