"""What was heard from the processes of one launch, kept for the summary and for the report of a failure."""

from __future__ import annotations

from dataclasses import dataclass, field

from launcher.children import Event


@dataclass(slots=True)
class Record:
    """Grows by `add`."""

    first_update: Event | None = None
    last_update: Event | None = None
    first_evaluation: Event | None = None
    last_evaluation: Event | None = None
    errors: list[Event] = field(default_factory=list)
    rank_exits: list[Event] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Keeps what the end of the launch needs of an event."""
        name = event["event"]
        if name == "update":
            self.first_update = self.first_update or event
            self.last_update = event
        elif name == "evaluation":
            self.first_evaluation = self.first_evaluation or event
            self.last_evaluation = event
        elif name == "error":
            self.errors.append(event)
        elif name == "rank_exit":
            self.rank_exits.append(event)
