"""How long a run still takes, from the lines of the updates it has trained; neither a resume nor the time before it counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ftcore.spec.run_lines import Line, covered, number

RECENT_LINES = 20
"""Lines that say how fast updates are now."""
MOST_LINES = 500
"""Lines that say what evaluations and checkpoints add."""


def seconds_left(newest: Iterable[Line]) -> float | None:
    """Of the run whose newest lines of metrics.jsonl these are, in order; None while nothing is known.

    Updates left x (seconds of an update as of late + what was between updates, over all these lines of the newest attempt). The first line of an
    attempt, which is slower than any other, counts only while there is none but it.
    """
    lines = list(newest)
    last = lines[-1] if lines else {}
    done, total = last.get("update"), last.get("total_updates")
    if type(done) is not int or type(total) is not int:
        return None
    if done == total:
        return 0.0
    known = newest_attempt(lines)
    parts = [covered(line) for line in (known[1:] or known)[-MOST_LINES:]]
    recent = [part for part in parts[-RECENT_LINES:] if part.train_s > 0]
    if not recent or done > total:
        return None
    update_s = sum(part.train_s for part in recent) / sum(max(1, part.updates) for part in recent)
    between_s = sum(max(0.0, part.wall_s - part.train_s) for part in parts) / sum(max(1, part.updates) for part in parts)
    return (update_s + between_s) * (total - done)


def newest_attempt(lines: Sequence[Line]) -> list[Line]:
    """The lines from the last resume on: where the attempt's number changes, or updates are done again."""
    first = len(lines) - 1
    while first > 0 and _goes_on(lines[first - 1], lines[first]):
        first -= 1
    return list(lines[max(0, first) :])


def _goes_on(before: Line, line: Line) -> bool:
    return before.get("attempt") == line.get("attempt") and number(before, "update") < number(line, "update")
