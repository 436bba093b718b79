"""Whether a run may go on with other data than its checkpoint was written with, and what is written down of it."""

from __future__ import annotations

from typing import Any

from ftcore.batch.cursor import Cursor
from ftcore.batch.data_identity import DataIdentity
from ftcore.dist import Ranks, gather_objects
from ftcore.metrics.writer import record_event
from ftcore.spec.events import attempt, emit
from ftcore.spec.run_dir import RunDir
from ftcore.train.history import read_events

STARTED, CHANGED = "launch_started", "data_changed"
"""Events: of a launch, which says whether data may change in it; of the change."""


def settle(cursor: Cursor, data: DataIdentity, seed: int, run_dir: RunDir, ranks: Ranks) -> Cursor:
    """The checkpoint's cursor on the run's data. Every rank calls it.

    Raises CheckpointError, on all ranks, when the seed changed, or the data did and nobody allowed it.
    """
    if data.fingerprint == cursor.data_fingerprint:
        cursor.require_same(data, seed)
        return cursor.on(data)
    allowed = gather_objects(ranks.is_first and is_allowed(run_dir, cursor.data, data), ranks)[0]
    cursor.require_same(data, seed, other_data=allowed)
    if ranks.is_first:
        _tell(run_dir, cursor, data)
    return cursor.on(data)


def require_settled(cursor: Cursor, data: DataIdentity, seed: int, run_dir: RunDir) -> None:
    """Raises what `settle` would, where no rank exists yet; writes nothing down."""
    cursor.require_same(data, seed, other_data=is_allowed(run_dir, cursor.data, data))


def is_allowed(run_dir: RunDir, before: DataIdentity, data: DataIdentity) -> bool:
    """Whether this launch was started with --allow-data-change, which is good for one change; or an earlier one was and went on with just these data,
    but saved no checkpoint.
    """
    events = read_events(run_dir)
    changes = [event for event in events if event.get("event") == CHANGED]
    if any((event.get("fingerprint_before"), event.get("fingerprint")) == (before.fingerprint, data.fingerprint) for event in changes):
        return True
    starts = [event for event in events if event.get("event") == STARTED and event.get("data_change_allowed")]
    given = next((event["data_change_allowed"] for event in reversed(starts) if event.get("attempt") == attempt()), None)
    # Launches that go on by themselves were given the same word. By order and not by time: hosts' clocks differ.
    first = next((event for event in starts if event["data_change_allowed"] == given), None)
    return first is not None and not any(event in changes for event in events[events.index(first) :])


def _tell(run_dir: RunDir, cursor: Cursor, data: DataIdentity) -> None:
    changes = [problem.what for problem in data.problems_since(cursor.data)]
    fields: dict[str, Any] = {"fingerprint_before": cursor.data_fingerprint, "fingerprint": data.fingerprint}
    fields |= {"sets_before": dict(cursor.data_sets), "sets": dict(data.sets), "draws_before": dict(cursor.data_draws), "draws": dict(data.draws)}
    record_event(run_dir, CHANGED, update=cursor.next_update, changes=changes, **fields)
    emit("note", text=f"goes on with other data, as --allow-data-change says: {'; '.join(changes)}")

