"""Where the numbers of metrics.jsonl go as well (logging.report_to). Each place is written to by a thread of its own: one that fails or hangs stops no run."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ftcore.metrics.scalars import evaluation_scalars, update_scalars
from ftcore.metrics.tensorboard_writer import TensorBoardWriter
from ftcore.metrics.wandb_writer import WandbWriter
from ftcore.metrics.writer import record_event
from ftcore.spec.errors import PreemptedError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec

CLOSE_S = 60.0
"""How long the end of a run waits for what is still to be sent."""
MOST_WAITING = 10_000
"""Updates that wait for a place that takes nothing; what comes after them is left out."""
Item = tuple[int, dict[str, float]] | None


class Writer(Protocol):
    """One place. Every call may raise whatever its library does."""

    def write(self, update: int, scalars: Mapping[str, float]) -> None:
        """Numbers of the state after `update` updates."""

    def close(self, *, failed: bool) -> None:
        """Writes down or sends what is held still; `failed`: the run ends with an error."""


class Reporter:
    """Hands numbers to one place, from a thread of its own, until it fails once."""

    def __init__(self, name: str, open_writer: Callable[[], Writer], tell: Callable[[str], None]) -> None:
        self._name, self._open, self._tell = name, open_writer, tell
        self._waiting: queue.Queue[Item] = queue.Queue(MOST_WAITING)
        self._is_full = self._failed = False
        self._thread = threading.Thread(target=self._run, name=f"report to {name}", daemon=True)
        self._thread.start()

    def put(self, update: int, scalars: dict[str, float]) -> None:
        """Never waits."""
        try:
            self._waiting.put_nowait((update, scalars))
        except queue.Full:
            if not self._is_full:
                self._tell(f"{self._name} takes nothing: updates from {update} on are not sent to it; metrics.jsonl has them")
            self._is_full = True

    def close(self, end: float, *, failed: bool) -> None:
        """Ends it; waits for what is still to be sent until `end` (of time.monotonic) at most."""
        self._failed = failed
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=max(0.0, end - time.monotonic()))
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            self._tell(f"{self._name} has not taken everything in {CLOSE_S:.0f} seconds; metrics.jsonl has it")

    def _run(self) -> None:
        is_over = False
        try:
            writer = self._open()
            while (item := self._waiting.get()) is not None:
                writer.write(*item)
            is_over = True
            writer.close(failed=self._failed)
        except Exception as error:  # noqa: BLE001  whatever a tracker's library raises, the run goes on
            self._tell(f"{self._name} takes no more numbers: {type(error).__name__}: {str(error)[:300]}; metrics.jsonl has them all")
            while not is_over:
                is_over = self._waiting.get() is None


class Reporters:
    """All places of a run."""

    def __init__(self, reporters: list[Reporter]) -> None:
        self._reporters = reporters

    def update(self, line: Mapping[str, Any]) -> None:
        """The line of an update."""
        for each in self._reporters:
            each.put(int(line["update"]), update_scalars(line))

    def evaluation(self, update: int, record: Mapping[str, Any]) -> None:
        """One set, scored after `update` updates."""
        for each in self._reporters:
            each.put(update, evaluation_scalars(record))

    def close(self) -> None:
        """Ends them all, within CLOSE_S; called while an error goes up, they hear of it."""
        error = sys.exception()
        end = time.monotonic() + CLOSE_S
        for each in self._reporters:
            each.close(end, failed=error is not None and not isinstance(error, PreemptedError))
        self._reporters = []


def open_reporters(spec: Spec, run_dir: RunDir, *, next_update: int) -> Reporters | None:
    """The places that the spec names, for rank 0 of a run with `next_update` updates done; None where it names none, and nothing is imported for them."""

    def tell(text: str) -> None:
        # The disk may be what has failed.
        with contextlib.suppress(OSError):
            record_event(run_dir, "note", text=text)

    known: dict[str, Callable[[], Writer]] = {
        "tensorboard": lambda: TensorBoardWriter(run_dir.tensorboard, next_update=next_update),
        "wandb": lambda: WandbWriter(spec.logging, run_dir, tell=tell),
    }
    names = list(dict.fromkeys(spec.logging.report_to))
    return Reporters([Reporter(name, known[name], tell) for name in names]) if names else None
