"""Looks at a run in a thread of its own: a slow disk or scheduler must not keep anybody from leaving."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Seen = TypeVar("Seen")


class Poller(Generic[Seen]):
    """Calls `look` every `interval_s`, and keeps what it gave last."""

    def __init__(self, look: Callable[[], Seen], interval_s: float, is_last: Callable[[Seen], bool]) -> None:
        """After something that `is_last` there is no further look."""
        self._look, self._interval_s, self._is_last = look, interval_s, is_last
        self._lock, self._leave = threading.Lock(), threading.Event()
        self._seen: Seen | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """No further look; one that is under way is left alone."""
        self._leave.set()

    def newest(self) -> Seen | None:
        """What was seen last; None before the first look is done. Raises what the last look raised."""
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._seen

    def _run(self) -> None:
        while not self._leave.is_set():
            try:
                seen = self._look()
            except BaseException as error:  # noqa: BLE001  raised where the user is, by `newest`
                with self._lock:
                    self._error = error
                return
            with self._lock:
                self._seen = seen
            if self._is_last(seen):
                return
            self._leave.wait(self._interval_s)
