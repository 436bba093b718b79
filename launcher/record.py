"""What was heard from the processes of one launch, kept for the summary and for the report of a failure."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from launcher.children import Event


@dataclass(slots=True)
class Record:
    """Grows by `add`."""

    first_update: Event | None = None
    last_update: Event | None = None
    evaluations: dict[str, tuple[Event, Event]] = field(default_factory=dict)
    """Evaluation set -> its first and its last result."""
    skipped: int = 0
    """Updates that changed nothing because something was not finite."""
    dropped_rows: Counter[str] = field(default_factory=Counter)
    """Rows of a stream that were left out, by reason."""
    preempted_by: int = 0
    """The signal by which a host's supervisor was asked to let the ranks save; 0: none was."""
    saved: Event | None = None
    """What rank 0 told when the run stopped as it was asked to."""
    early_stop: Event | None = None
    """What rank 0 told when its evaluations ended the run."""
    data_end: Event | None = None
    """What rank 0 told when the data ended before the last update."""
    trains: bool = False
    """Whether any rank has begun."""
    errors: list[Event] = field(default_factory=list)
    rank_exits: list[Event] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Keeps what the end of the launch needs of an event, with when it was heard."""
        name = event["event"]
        event = {**event, "heard": time.monotonic()}
        self.trains = self.trains or name in ("update", "evaluation") or event.get("stage") == "load"
        if name == "update":
            self.first_update = self.first_update or event
            self.last_update = event
            self.dropped_rows.update(event.get("dropped_rows") or {})
        elif name == "evaluation":
            held_out = str(event.get("set", "eval"))
            first, _ = self.evaluations.get(held_out, (event, event))
            self.evaluations[held_out] = (first, event)
        elif name in ("failed_update", "overflow"):
            self.skipped += 1
        elif name == "preempted":
            self.saved = event
        elif name == "early_stop":
            self.early_stop = event
        elif name == "data_end":
            self.data_end = event
            self.dropped_rows.update(event.get("dropped_rows") or {})
        elif name == "preempt":
            self.preempted_by = int(event["signal"])
        elif name == "error":
            self.errors.append(event)
        elif name == "rank_exit":
            self.rank_exits.append(event)
