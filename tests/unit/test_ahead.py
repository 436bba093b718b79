"""Work done ahead in a thread: its order, its errors and its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ftcore.feed import ahead
from tests.unit.live_processes import wait_until


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert feeding() == 0


class Ahead(ahead.Ahead[int]):
    """With threads that are told from those of other tests, which come and go as they like."""

    def __init__(self, make: Callable[[int], int], *, depth: int, until: int) -> None:
        super().__init__(make, depth=depth, until=until, name=__name__)


def feeding() -> int:
    """Threads of this test that work ahead."""
    return sum(thread.name == __name__ for thread in threading.enumerate())


def test_items_are_made_ahead_and_no_further() -> None:
    made: list[int] = []
    items = Ahead(lambda index: made.append(index) or index * index, depth=2, until=10)
    assert made == [] and feeding() == 0, "nothing begins before something is asked for"
    assert items.get(3) == 9
    wait_until(lambda: len(made) >= 3)
    time.sleep(0.02)
    assert made == [3, 4, 5]
    assert [items.get(index) for index in (4, 5, 6, 7, 8, 9)] == [16, 25, 36, 49, 64, 81]
    wait_until(lambda: len(made) >= 7)
    assert made == [3, 4, 5, 6, 7, 8, 9], "none is made twice, and none after the last"
    items.close()
    items.close()


def test_any_other_item_is_a_jump() -> None:
    items = Ahead(lambda index: index, depth=3, until=100)
    assert [items.get(index) for index in (0, 1, 50, 51, 7, 7, 99)] == [0, 1, 50, 51, 7, 7, 99]
    assert items.get(100) == 100, "beyond the end it is made when it is asked for"
    items.close()


def test_nothing_is_made_ahead_with_no_depth() -> None:
    made: list[int] = []
    items = Ahead(lambda index: made.append(index) or threading.get_ident(), depth=0, until=10)
    assert items.get(0) == threading.get_ident() and made == [0]
    items.close()


def test_an_error_comes_when_its_item_is_asked_for_and_the_item_can_be_tried_again() -> None:
    broken = {2}

    def make(index: int) -> int:
        if index in broken:
            raise ValueError(f"item {index}")
        return index

    items = Ahead(make, depth=3, until=10)
    assert [items.get(0), items.get(1)] == [0, 1]
    with pytest.raises(ValueError, match="item 2") as caught:
        items.get(2)
    assert any(entry.name == "make" for entry in caught.traceback), "the place of the error is not lost"
    with pytest.raises(ValueError, match="item 2"):
        items.get(2)
    broken.clear()
    assert [items.get(2), items.get(3)] == [2, 3]
    items.close()


def test_closing_waits_for_the_item_that_is_being_made_and_throws_it_away() -> None:
    began, goes_on = threading.Event(), threading.Event()

    def make(index: int) -> int:
        if index == 1:
            began.set()
            assert goes_on.wait(60)
        return index

    items = Ahead(make, depth=1, until=10)
    assert items.get(0) == 0 and began.wait(60)
    threading.Timer(0.02, goes_on.set).start()
    items.close()
    assert feeding() == 0
    assert items.get(1) == 1, "it may begin again"
    items.close()
    time.sleep(0.03)
