"""Where all ranks stop together when one or more of them were asked to.

Every rank passes the same points in the same order (after each update, before each micro-step of an evaluation), and counts them. Until
somebody asks, that is all: no collective, no message between ranks' main threads, no wait for a device. When a rank is asked, the
others' threads hear of it through the store that the process group was made with. Each thread then holds its main thread back at the next
point, and tells how many it has passed; the ranks stop at the highest of these numbers, which those behind come to as they go on. A rank
that is held back has done all its collectives of the points that it passed, so nobody waits for it.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any, Protocol

from ftcore.spec.errors import PreemptedError
from ftcore.spec.events import emit
from ftcore.stop_request import StopRequest

POLL_S = 0.5
"""How often a rank's thread asks the store whether another rank was asked to stop."""
ANSWERS_TIMEOUT = timedelta(days=1)
"""The threads answer in POLL_S; a rank that has died is the supervisor's affair."""
_ASKED = "asked"


class Store(Protocol):
    """The part of torch.distributed.Store that is needed; it may not be another thread's at the same time. Raises RuntimeError when the other end is gone."""

    def set(self, key: str, value: str, /) -> Any: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...

    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...


class Agreement:
    """One rank's part. `is_stop` is for the main thread, the rest happens in a thread of its own."""

    def __init__(self, store: Store, *, rank: int, world_size: int, request: StopRequest) -> None:
        self._store, self._rank, self._world_size, self._request = store, rank, world_size, request
        self._turn = threading.Condition()
        self._passed = 0
        """Points that the main thread went on after."""
        self._held = self._closed = False
        self._target: int | None = None
        """The point to stop at, once it is known."""
        self._lost: RuntimeError | None = None
        threading.Thread(target=self._listen, name="agreement", daemon=True).start()

    def is_stop(self) -> bool:
        """A point: whether all ranks stop here. Every rank must call it equally often. True once; who does not stop then may go on.

        Raises RuntimeError when the ranks could not come to an agreement because one has gone.
        """
        with self._turn:
            self._turn.wait_for(lambda: not self._held)
            if self._lost is not None:
                raise self._lost
            reached = self._passed == self._target
            self._passed += 1
            return reached

    def stop_here(self) -> None:
        """`is_stop` for work that leaves nothing to save, which the launcher hears of. Raises PreemptedError, on all ranks alike."""
        if self.is_stop():
            if self._rank == 0:
                emit("preempted", update=0, path="")
            raise PreemptedError("stopped as it was asked to")

    def close(self) -> None:
        """To be called before the process group is left: the thread does nothing from here on."""
        self._closed = True

    def _listen(self) -> None:
        try:
            if not self._hear():
                return
            with self._turn:
                self._held, mine = True, self._passed
            self._store.set(f"passed/{self._rank}", str(mine))
            answers = [f"passed/{rank}" for rank in range(self._world_size)]
            self._store.wait(answers, ANSWERS_TIMEOUT)
            self._resolve(max(int(self._store.get(answer)) for answer in answers), None)
        except RuntimeError as error:
            # Nobody asked yet: the main thread finds out by itself that a rank has gone.
            self._resolve(None, error if self._held else None)

    def _hear(self) -> bool:
        """Waits until a rank was asked, and passes on that this one was; False when there will be no more points."""
        while not self._closed:
            is_asked = self._request.wait(POLL_S)
            if self._closed:
                return False
            if is_asked:
                self._store.set(_ASKED, "")
                return True
            if self._store.check([_ASKED]):
                return True
        return False

    def _resolve(self, target: int | None, lost: RuntimeError | None) -> None:
        with self._turn:
            self._target, self._lost, self._held = target, lost, False
            self._turn.notify_all()
