"""Save while training goes on: threads write what the optimizer will not change before its next step, and rank 0 commits when all have."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.batch.cursor import Cursor
from ftcore.checkpoint import layout
from ftcore.checkpoint.capture import capture, describe
from ftcore.checkpoint.commit import add_metric, clear_partial, commit, tidy
from ftcore.checkpoint.manifest import FileEntry, Manifest
from ftcore.checkpoint.rank_files import Sink, write_rank
from ftcore.checkpoint.snapshot import CancelledError, Snapshot
from ftcore.data.prepared import ModelSource
from ftcore.dist import barrier, gather_objects
from ftcore.engine import Engine
from ftcore.spec.errors import CheckpointError
from ftcore.spec.sections import Spec

LAST_PAUSES_S = (1.0, 5.0, 15.0)
"""Waits before the last save of a run is tried again."""
WIDEST_RETRY = 64
"""Updates between two tries of a save that keeps failing, at most."""
FIX = "free disk space or correct the folder's permissions, then ftlaunch --resume; earlier checkpoints are untouched"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOutcome:
    """How a save ended, the same on every rank."""

    update: int
    path: Path | None
    """The checkpoint, once it counts; None when the save failed."""
    rank: int | None = None
    """The first rank that failed."""
    reason: str = ""
    """Why it failed, or what could not be tidied up after it."""


class _Task:
    """Work in a thread; its value or its error is looked at later."""

    def __init__(self, work: Callable[[], Any], name: str) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # noqa: BLE001  raised again in the thread that asks
            self._error = error

    def outcome(self, *, wait: bool) -> tuple[bool, Any, str]:
        """Whether it has ended, its value, and why not: the text of an OSError. Raises any other error."""
        if wait:
            self._thread.join()
        if self._thread.is_alive():
            return False, None, ""
        if isinstance(self._error, (OSError, CancelledError)):
            return True, None, str(self._error) or type(self._error).__name__
        if self._error is not None:
            raise self._error
        return True, self._value, ""


@dataclass(slots=True)
class _InFlight:
    manifest: Manifest
    snapshot: Snapshot
    task: _Task
    committing: bool = False


class Saver:
    """The checkpoints of a run. Every rank calls each method at the same update; all ranks get the same answers."""

    def __init__(self, engine: Engine, checkpoints: Path, *, spec: Spec, base: ModelSource, sink: Sink = os.write) -> None:
        self._engine, self._checkpoints, self._spec, self._base, self._sink = engine, checkpoints, spec, base, sink
        self._in_flight: _InFlight | None = None
        self._tidying: _Task | None = None
        """Rank 0's deletion of older checkpoints, which may take longer than an update."""
        self._failures = 0
        self._retry_at: int | None = None
        self.saved_update: int | None = None
        """Of the last checkpoint that this saver committed."""

    def begin(self, cursor: Cursor, metric: float | None = None) -> SaveOutcome | None:
        """Starts a save of the state after `cursor.next_update` updates, which has `metric` (lower is better) where it was measured.

        Returns how the save before it ended, when that one was still being written; without checkpoint.save_async how this one ended.
        Raises CheckpointError for optimizer state that can't be stored.
        """
        before = self.poll(wait=True)
        self._start(cursor, metric)
        return before if self._spec.checkpoint.save_async else self._ended()

    def before_step(self) -> None:
        """To be called after an update's last backward and before its optimizer step: copies what is still to be written."""
        if self._in_flight is not None:
            self._in_flight.snapshot.detach()

    def poll(self, *, wait: bool = False) -> SaveOutcome | None:
        """How the save that was begun ended, told once; None while it goes on, and at no cost when there is none.

        Only with a path in it has anything been saved. With `wait` the answer is there on return, and older checkpoints are gone.
        """
        if self._in_flight is None:
            return None
        return self._ended() if wait else self._advance(self._in_flight, wait=False)

    def wants_retry(self, update: int) -> bool:
        """Whether the last save failed and it is time, after `update` updates, to begin one again."""
        return self._in_flight is None and self._retry_at is not None and update >= self._retry_at

    def finish(
        self, cursor: Cursor, metric: float | None = None, *, evaluation_due: bool = False, pauses_s: tuple[float, ...] = LAST_PAUSES_S
    ) -> Iterator[SaveOutcome]:
        """Saves the run's last state durably: the outcome of each try as it ends, the last one with a path. No second time what it has saved.

        `evaluation_due`: whoever goes on from it has an evaluation to make up first. Raises CheckpointError on all ranks when the tries are used up.
        """
        before = self.poll(wait=True)
        if before is not None:
            yield before
        for pause_s in (*pauses_s, None):
            if self.saved_update == cursor.next_update:
                return
            self._start(cursor, metric, evaluation_due)
            outcome = self._ended()
            yield outcome
            if outcome.path is None:
                if pause_s is None:
                    raise CheckpointError(f"rank {outcome.rank} could not save: {outcome.reason}", where=str(self._checkpoints), fix=FIX)
                time.sleep(pause_s)

    def evaluated(self, update: int, metric: float | None) -> None:
        """Adds what an evaluation found to the checkpoint after `update` updates, which was saved while that was still due. Raises OSError, on rank 0."""
        path = layout.checkpoint_path(self._checkpoints, update)
        if self._engine.ranks.is_first:
            add_metric(path, _finite(metric))
            self._tidied()
            self._tidying = _Task(lambda: tidy(path, keep=self._spec.checkpoint.save_total_limit), "checkpoint-tidy")
        self.saved_update = update

    def _start(self, cursor: Cursor, metric: float | None, evaluation_due: bool = False) -> None:
        engine = self._engine
        captured = capture(engine, cursor)
        manifest = describe(engine, cursor, spec=self._spec, base=self._base, metric=_finite(metric), evaluation_due=evaluation_due)
        snapshot = Snapshot(captured.tensors)
        refusal = self._clear(manifest.update)
        partial = layout.partial_path(self._checkpoints, manifest.update)

        def write() -> list[FileEntry]:
            if refusal:
                raise OSError(refusal)
            return write_rank(partial, engine.ranks.rank, captured, snapshot, self._sink)

        self._in_flight = _InFlight(manifest, snapshot, _Task(write, "checkpoint-write"))

    def _ended(self) -> SaveOutcome:
        """Waits for the save in flight."""
        while (outcome := self._advance(self._in_flight, wait=True)) is None:
            pass
        note = str(gather_objects(self._tidied(), self._engine.ranks)[0])
        return dataclasses.replace(outcome, reason="; ".join(filter(None, (outcome.reason, note))))

    def _tidied(self) -> str:
        """Waits for the deletion of older checkpoints; what went wrong with it."""
        if self._tidying is None:
            return ""
        _, note, reason = self._tidying.outcome(wait=True)
        self._tidying = None
        return str(note or reason)

    def _clear(self, update: int) -> str:
        """Makes room for a new partial folder before any rank writes into it; returns rank 0's reason when it can't."""
        reason = ""
        if self._engine.ranks.is_first:
            # A deletion that failed is tried again after this save, and told of when it is waited for.
            self._tidied()
            try:
                clear_partial(self._checkpoints, update)
            except OSError as error:
                reason = str(error)
        return str(gather_objects(reason, self._engine.ranks)[0])

    def _advance(self, save: _InFlight, *, wait: bool) -> SaveOutcome | None:
        ranks = self._engine.ranks
        ended = gather_objects(save.task.outcome(wait=wait), ranks)
        failed = next((rank for rank, (_, _, reason) in enumerate(ended) if reason), None)
        if failed is not None:
            return self._give_up(save, failed, ended[failed][2])
        if not all(done for done, _, _ in ended):
            return None
        if save.committing:
            return self._saved(save, note=str(ended[0][1]))
        files = tuple(entry for _, entries, _ in ended for entry in entries)
        manifest = dataclasses.replace(save.manifest, files=files)
        save.task = _Task(lambda: commit(self._checkpoints, manifest) if ranks.is_first else "", "checkpoint-commit")
        save.committing = True
        return None

    def _saved(self, save: _InFlight, *, note: str) -> SaveOutcome:
        update = save.manifest.update
        self._in_flight, self._retry_at, self._failures = None, None, 0
        self.saved_update = update
        path, keep = layout.checkpoint_path(self._checkpoints, update), self._spec.checkpoint.save_total_limit
        if self._engine.ranks.is_first:
            self._tidying = _Task(lambda: tidy(path, keep=keep), "checkpoint-tidy")
        return SaveOutcome(update=update, path=path, reason=note)

    def _give_up(self, save: _InFlight, rank: int, reason: str) -> SaveOutcome:
        update = save.manifest.update
        save.snapshot.cancel()
        save.task.outcome(wait=True)
        barrier()  # Nobody writes there any more.
        if self._engine.ranks.is_first:
            shutil.rmtree(layout.partial_path(self._checkpoints, update), ignore_errors=True)
        self._failures += 1
        self._retry_at = update + min(WIDEST_RETRY, 2 ** (self._failures - 1))
        self._in_flight = None
        return SaveOutcome(update=update, path=None, rank=rank, reason=reason)


def _finite(metric: float | None) -> float | None:
    return metric if metric is not None and math.isfinite(metric) else None
