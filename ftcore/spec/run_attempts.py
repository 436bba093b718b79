"""A run's attempts (its launches): when each ran, on how many ranks, what is left of it. Time between attempts belongs to none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ftcore.spec.errors import INTERRUPT_STATUS_BASE, PREEMPTED
from ftcore.spec.run_lines import Covered, Line, RunRecord, covered, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One launch of a run."""

    number: int
    """From 1."""
    started: float
    """Seconds since the epoch; 0 when nothing tells."""
    ended: float | None
    """None: it runs, or was killed before it could say so."""
    wall_s: float
    """From the launch's start to its end, or to the last that was heard of it. No clock that was set meanwhile changes it where that can be told."""
    world_size: int
    first_update: int
    """Updates done when it began."""
    updates: int
    """Updates that it trained and the run kept."""
    redone_updates: int
    """Updates that it trained beyond its last whole checkpoint, and another attempt trained again."""
    train_s: float
    """Of the updates that its lines tell of: without start, evaluations and checkpoints."""
    tokens: int
    supervised_tokens: int
    """Of the updates that its lines tell of, like `tokens`."""
    how_ended: str
    """`finished`, `preempted`, `stopped`, `failed`, `killed`; empty: nobody has said so yet."""
    reason: str

    @property
    def device_s(self) -> float:
        """Seconds that its ranks' devices were held."""
        return self.world_size * self.wall_s

    @property
    def tokens_per_s(self) -> float | None:
        """While it trained; None: it kept no update."""
        return self.tokens / self.train_s if self.train_s > 0 else None

    @property
    def supervised_tokens_per_s(self) -> float | None:
        """As `tokens_per_s`."""
        return self.supervised_tokens / self.train_s if self.train_s > 0 else None


def attempts(record: RunRecord) -> list[Attempt]:
    """Every attempt that left a trace, by number; those of runs without any numbers count as one."""
    lines = lines_by_attempt(record)
    numbers = sorted({*lines, *(each for event in record.events if (each := _attempt(event)) is not None)})
    return [_attempt_of(record, each, lines.get(each, []), is_last=each == numbers[-1]) for each in numbers]


def lines_by_attempt(record: RunRecord) -> dict[int, list[Line]]:
    """Attempt -> the lines of metrics.jsonl that it wrote and the run kept."""
    starts = {each: _first_update(record, each) for event in record.events if (each := _attempt(event)) is not None}
    found: dict[int, list[Line]] = {}
    for line in record.updates:
        of = _attempt(line)
        if of is None:
            # A line of an earlier version: of the newest attempt that began before it.
            of = max((each for each, first in starts.items() if first is not None and first < line["update"]), default=1)
        found.setdefault(of, []).append(line)
    return found


def _attempt_of(record: RunRecord, which: int, lines: list[Line], *, is_last: bool) -> Attempt:
    parts = [covered(line) for line in lines]
    started, ended = _event(record, "launch_started", which), _event(record, "launch_ended", which)
    first = _first_update(record, which)
    if first is None:
        first = int(lines[0]["update"]) - parts[0].updates if lines else _reached(record, which)
    return Attempt(
        number=which,
        started=_start(record, which, lines),
        ended=number(ended, "time") if ended else None,
        wall_s=_wall_s(record, which, lines, parts),
        world_size=_world_size(record, which, lines, started),
        first_update=max(0, first),
        updates=max(0, _end(record, which, lines) - max(0, first)),
        redone_updates=sum(int(number(event, "updates")) for event in record.events if event["event"] == "done_again" and event.get("trained_by") == which),
        train_s=sum(part.train_s for part in parts),
        tokens=sum(part.tokens for part in parts),
        supervised_tokens=sum(part.supervised_tokens for part in parts),
        how_ended=_how(ended, failed=_event(record, "failure", which) is not None) if ended else "" if is_last else "killed",
        reason=str(ended.get("reason") or "") if ended else "",
    )


def _how(ended: Line, *, failed: bool) -> str:
    """In a word. A rank that a signal ended gives its launch the status of one that was itself stopped by it: then a failure was told."""
    status = int(number(ended, "status", 1))
    names = {0: "finished", PREEMPTED: "preempted", INTERRUPT_STATUS_BASE + 9: "killed"}
    stopped = {INTERRUPT_STATUS_BASE + signal: "killed" if failed else "stopped" for signal in (1, 2, 15)}
    return (names | stopped).get(status, "failed")


def _wall_s(record: RunRecord, which: int, lines: list[Line], parts: list[Covered]) -> float:
    """The launcher's own count where it lived to write one; else the parts that clocks give, with the counted seconds of the updates between them."""
    ended = _event(record, "launch_ended", which)
    if ended and number(ended, "seconds") > 0:
        return number(ended, "seconds")
    counted = sum(part.wall_s for part in parts)
    start, last = _start(record, which, lines), _last_heard(record, which, lines)
    # Lines of updates that were trained again are cut away; of those that were lost to a kill nothing else may be left.
    redone = sum(number(event, "seconds") for event in record.events if event["event"] == "done_again" and event.get("trained_by") == which)
    timed = [line for line in lines if number(line, "time") > 0]
    if not timed or len(timed) < len(lines):
        return max(counted + redone, last - start)
    before = max(0.0, number(timed[0], "time") - parts[0].wall_s - start)
    return before + counted + max(redone, last - number(timed[-1], "time"))


def _start(record: RunRecord, which: int, lines: list[Line]) -> float:
    started = _event(record, "launch_started", which)
    if started and number(started, "time") > 0:
        return number(started, "time")
    times = [number(event, "time") for event in record.events if _attempt(event) == which and number(event, "time") > 0]
    times += [number(line, "time") - covered(line).wall_s for line in lines[:1] if number(line, "time") > 0]
    return min(times, default=0.0)


def _last_heard(record: RunRecord, which: int, lines: list[Line]) -> float:
    """When the attempt wrote last; of its own end, where it told one."""
    ended = _event(record, "launch_ended", which)
    if ended:
        return number(ended, "time")
    times = [number(event, "time") for event in record.events if _attempt(event) == which]
    return max((*times, *(number(line, "time") for line in lines[-1:])), default=0.0)


def _first_update(record: RunRecord, which: int) -> int | None:
    """Updates done when the attempt began; None: nothing tells, or it never came to training."""
    for name in ("loop_start", "resumed"):
        found = _event(record, name, which)
        if found:
            return int(number(found, "update"))
    return 0 if which == 1 or _event(record, "note", which, _from_the_start) else None


def _from_the_start(event: Line) -> bool:
    return str(event.get("text", "")).endswith("starting from update 0")


def _end(record: RunRecord, which: int, lines: list[Line]) -> int:
    """The last update that the attempt trained and the run kept: where the next one went on, or as far as it got."""
    later = {each for event in record.events if (each := _attempt(event) or 0) > which and event["event"] in ("loop_start", "resumed")}
    known = [first for each in later if (first := _first_update(record, each)) is not None]
    if known:
        return min(known)
    told = [event for event in record.events if event["event"] in ("checkpoint", "preempted", "loop_end") and _attempt(event) == which]
    return max((int(number(each, "update")) for each in (*told, *lines[-1:])), default=0)


def _reached(record: RunRecord, which: int) -> int:
    """The last update kept of the attempts before."""
    return max((int(line["update"]) for line in record.updates if (_attempt(line) or 0) < which), default=0)


def _world_size(record: RunRecord, which: int, lines: list[Line], started: Line | None) -> int:
    """As its lines say, or the launch; else as the run was changed between attempts."""
    own = [*reversed(lines), *(event for name in ("loop_start",) if (event := _event(record, name, which))), *([started] if started else [])]
    told = next((int(number(each, "world_size")) for each in own if number(each, "world_size") > 0), None)
    if told is not None:
        return told
    changes = [event for event in record.events if event["event"] == "resumed_with" and _attempt(event) is not None]
    before = [int(number(event, "world_size")) for event in changes if (_attempt(event) or 0) <= which]
    after = [int(number(event, "world_size_before")) for event in changes if (_attempt(event) or 0) > which]
    return next(iter((*reversed(before), *after)), 0) or ranks_of(record.resolved)


def ranks_of(resolved: dict[str, Any]) -> int:
    """The world size of a resolved spec as plain data; 1 where it says none."""
    hosts = resolved.get("hosts")
    slots = [int(number(host, "slots")) for host in hosts if isinstance(host, dict)] if isinstance(hosts, list) else []
    return sum(slots) or 1


def _event(record: RunRecord, name: str, which: int, fits: Callable[[Line], bool] = lambda event: True) -> Line | None:
    """The last event of that name and attempt."""
    return next((event for event in reversed(record.events) if event["event"] == name and _attempt(event) == which and fits(event)), None)


def _attempt(line: Line) -> int | None:
    value = line.get("attempt")
    return value if type(value) is int and value > 0 else None
