"""Work that is ordered ahead: each item once, in order, and as much as was asked for, whatever happens."""

from __future__ import annotations

import threading
import time

import pytest

from ftcore.feed.posted import Posted


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_items_come_once_and_in_order_and_no_more_are_made_than_ordered(depth: int) -> None:
    made: list[int] = []
    posted: Posted[int] = Posted(lambda item: made.append(item) or item * 10, first=4, until=9, depth=depth, name="ordered")  # type: ignore[func-returns-value]
    assert [posted.get(item) for item in (4, 5)] == [40, 50]
    posted.close()
    assert made == list(range(4, min(9, 6 + depth)))
    assert [posted.get(item) for item in (6, 7, 8)] == [60, 70, 80]
    posted.close()
    posted.close()
    assert made == list(range(4, 9)) and "ordered" not in [thread.name for thread in threading.enumerate()]


def test_what_was_ordered_is_made_before_close_returns() -> None:
    done = threading.Event()

    def make(item: int) -> int:
        if item:
            time.sleep(0.05)
            done.set()
        return item

    posted: Posted[int] = Posted(make, first=0, until=2, depth=1)
    posted.get(0)
    posted.close()
    assert done.is_set()


def test_an_error_comes_with_its_item_and_stays() -> None:
    def make(item: int) -> int:
        if item == 2:
            raise ValueError("no such thing")
        return item

    posted: Posted[int] = Posted(make, first=0, until=9, depth=3)
    assert [posted.get(item) for item in (0, 1)] == [0, 1]
    for _ in range(2):
        with pytest.raises(ValueError, match="no such thing"):
            posted.get(2)
    posted.close()


def test_another_item_than_the_next_is_refused() -> None:
    posted: Posted[int] = Posted(lambda item: item, first=0, until=9, depth=0)
    with pytest.raises(ValueError, match="item 3 was asked for, 0 is next"):
        posted.get(3)


def test_close_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcore.feed.posted.CLOSE_S", 0.05)
    stuck = threading.Event()
    made: list[int] = []

    def make(item: int) -> bool:
        made.append(item)
        return item == 0 or stuck.wait(600)

    posted: Posted[bool] = Posted(make, first=0, until=3, depth=2, name="stuck")
    posted.get(0)
    started = time.monotonic()
    posted.close()
    assert time.monotonic() - started < 60
    threading.Timer(0.1, stuck.set).start()
    # What is still being made then is not made twice.
    assert (posted.get(1), posted.get(2), made) == (True, True, [0, 1, 2])
    posted.close()
    assert "stuck" not in [thread.name for thread in threading.enumerate()]
