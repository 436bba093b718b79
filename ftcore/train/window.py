"""What a rank counts between two lines of metrics.jsonl: a line covers every update since the one before it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ftcore.feed.fed_update import Counts, FedUpdate


@dataclass(slots=True)
class Window:
    """The updates since the last line."""

    began: float = field(default_factory=time.perf_counter)
    """When the line before was written, or the loop began; of time.perf_counter."""
    updates: int = 0
    train_s: float = 0.0
    """Seconds of the updates themselves."""
    counts: Counts = field(default_factory=Counts)
    """Over all ranks."""
    computed_tokens: int = 0
    """Over all ranks."""
    own_tokens: int = 0
    """Of this rank alone, as the two that follow."""
    own_computed_tokens: int = 0
    own_lengths: Counter[int] = field(default_factory=Counter)
    """Length -> samples."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows of a stream that were left out, by reason."""
    truncated: int = 0
    """Samples of a stream that were cut."""

    def add(self, fed: FedUpdate, seconds: float) -> None:
        """One update more, which took so many seconds."""
        lengths = list(own_lengths(fed))
        self.updates += 1
        self.train_s += seconds
        self.counts += fed.counts
        self.computed_tokens += fed.computed_tokens
        self.own_tokens += sum(lengths)
        self.own_computed_tokens += sum(batch.tokens for batch in fed.batches)
        self.own_lengths.update(lengths)
        self.dropped.update(fed.dropped_rows)
        self.truncated += fed.truncated


def own_lengths(fed: FedUpdate) -> Iterator[int]:
    """Tokens of each of this rank's samples; filler rows are none."""
    for batch, part in zip(fed.batches, fed.parts, strict=True):
        if len(part):
            yield from batch.segment_lengths
