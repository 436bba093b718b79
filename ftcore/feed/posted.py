"""Work done ahead in a thread, each item once and in order: for work that talks to other ranks, which must do as much of it as this one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

CLOSE_S = 10.0
"""How long `close` waits for items that are being made: other ranks may have died."""

Made = TypeVar("Made")


class Posted(Generic[Made]):
    """Makes item `first`, `first` + 1, ... below `until`. `get(index)` orders those up to `index` + `depth`, no more: so ranks that asked for
    the same have ordered the same, and when they close, each does all that it ordered.

    The thread begins with the first `get`, so that a process may fork and hold its signals before. With `depth` 0 there is none.
    """

    def __init__(self, make: Callable[[int], Made], *, first: int, until: int, depth: int, name: str = "feed") -> None:
        """`make` is called once for each item, never twice at the same time. Once it raised, every later `get` raises the same."""
        self._make, self._until, self._depth, self._name = make, until, depth, name
        self._turn = threading.Condition()
        self._next = self._ordered = first
        """The item that is asked for next, and the first that is not ordered yet."""
        self._done = first
        """The first that is not made yet."""
        self._ready: deque[Made] = deque()
        self._error: BaseException | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    def get(self, index: int) -> Made:
        """Item `index`, which must be the one after the last. Raises what making it, or one before it, raised, and ValueError for another item."""
        if index != self._next:
            raise ValueError(f"item {index} was asked for, {self._next} is next")
        with self._turn:
            self._ordered = max(self._ordered, min(index + 1 + max(0, self._depth), max(self._until, index + 1)))
            self._turn.notify_all()
        if self._depth <= 0:
            self._work_off()
        elif self._thread is None or self._closing:
            if self._thread is not None:
                # `close` did not wait for it to the end.
                self._thread.join()
            self._closing = False
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        with self._turn:
            self._turn.wait_for(lambda: self._ready or self._error is not None)
            if not self._ready and self._error is not None:
                raise self._error
            self._next += 1
            return self._ready.popleft()

    def close(self) -> None:
        """Ends the thread once it has made what is ordered; what it made is kept for a later `get`."""
        with self._turn:
            self._closing = True
            self._turn.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._closing or self._done < self._ordered)
                if self._done >= self._ordered or self._error is not None:
                    return
            self._work_off()

    def _work_off(self) -> None:
        """Makes what is ordered."""
        while self._error is None:
            with self._turn:
                if self._done >= self._ordered:
                    return
            try:
                made = self._make(self._done)
            except BaseException as error:  # noqa: BLE001  raised again in the thread that asks
                with self._turn:
                    self._error = error
                    self._turn.notify_all()
                return
            with self._turn:
                self._ready.append(made)
                self._done += 1
                self._turn.notify_all()
