"""Work done ahead in a thread: what is asked for next is usually there already."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Ahead(Generic[Made]):
    """Makes item `index`, `index` + 1, ... below `until` in a thread, at most `depth` of them before they are asked for.

    The thread begins with the first `get`, so that a process may fork and hold its signals before. With `depth` 0 there is none:
    everything is made when it is asked for.
    """

    def __init__(self, make: Callable[[int], Made], *, depth: int, until: int, name: str = "feed") -> None:
        """`make` is never called twice at the same time."""
        self._make, self._depth, self._until, self._name = make, depth, until, name
        self._turn = threading.Condition()
        self._ready: deque[tuple[Made, None] | tuple[None, BaseException]] = deque()
        self._wanted = 0
        """Index of the first that is ready, or is being made."""
        self._closing = False
        self._thread: threading.Thread | None = None

    def get(self, index: int) -> Made:
        """Item `index`; the next ones are made meanwhile. Raises what making it raised, and tries again the next time."""
        if self._depth <= 0 or not 0 <= index < self._until:
            return self._make(index)
        if self._thread is None or index != self._wanted:
            self.close()
            self._start(index)
        with self._turn:
            self._turn.wait_for(lambda: self._ready)
            made, error = self._ready.popleft()
            self._wanted += 1
            self._turn.notify_all()
        if error is not None:
            self.close()
            raise error
        return made  # type: ignore[return-value]

    def close(self) -> None:
        """Ends the thread and waits for it, at most for the item that it is making; what it made is thrown away. A later `get` begins again."""
        with self._turn:
            thread, self._thread = self._thread, None
            self._closing = True
            self._turn.notify_all()
        if thread is not None:
            thread.join()
        self._ready.clear()

    def _start(self, index: int) -> None:
        self._wanted, self._closing = index, False
        self._thread = threading.Thread(target=self._work, args=(index,), name=self._name, daemon=True)
        self._thread.start()

    def _work(self, first: int) -> None:
        for index in range(first, self._until):
            with self._turn:
                self._turn.wait_for(lambda: self._closing or len(self._ready) < self._depth)
                if self._closing:
                    return
            try:
                self._put((self._make(index), None))
            except BaseException as error:  # noqa: BLE001  raised again in the thread that asks
                self._put((None, error))
                return

    def _put(self, outcome: tuple[Made, None] | tuple[None, BaseException]) -> None:
        with self._turn:
            self._ready.append(outcome)
            self._turn.notify_all()
