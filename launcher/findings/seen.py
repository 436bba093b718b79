"""What there is to look at of a run. Whatever is missing or damaged is named, and nothing is raised for it."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.errors import CheckpointError, FtError
from ftcore.spec.recorded import recorded_object
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_record import Attempt, Line, RunRecord, attempts, number, read_run
from launcher.memory.shape import ModelShape

WARM_UP = 2
"""Updates of an attempt that say nothing of its speed: caches fill, the allocator and the optimizer take their memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A run as it was recorded."""

    record: RunRecord
    launches: tuple[Attempt, ...]
    resolved: ResolvedSpec | None
    """None: resolved.json is of another version, or damaged."""
    shape: ModelShape | None
    """None: the model's config.json is not on this machine; there is no ledger then."""
    is_running: bool
    missing: tuple[str, ...]

    @property
    def run(self) -> Path:
        return self.record.run_dir.path

    @property
    def attempt(self) -> int:
        """The newest launch; 0: none."""
        return self.launches[-1].number if self.launches else 0

    @property
    def done(self) -> int:
        """Updates done."""
        return int(number(self.record.updates[-1], "update")) if self.record.updates else 0

    @property
    def is_trained(self) -> bool:
        """The last update is done."""
        return self.done > 0 and self.done == number(self.record.updates[-1], "total_updates")

    @property
    def at_work_on(self) -> int | None:
        """The update that was not done any more; None before the first one, and after the last."""
        return self.done + 1 if self.done and not self.is_trained else None

    @property
    def on_cpu(self) -> bool:
        """Whether the ranks compute on their hosts."""
        capacity = (self.record.memory or {}).get("capacity")
        if isinstance(capacity, dict) and capacity.get("accelerator"):
            return str(capacity["accelerator"]).startswith("cpu")
        hosts = (self.record.environment or {}).get("hosts")
        return isinstance(hosts, list) and bool(hosts) and all(isinstance(host, dict) and host.get("accelerators") == [] for host in hosts)

    def events(self, name: str, attempt: int | None = None) -> list[Line]:
        """The events of a name, of one launch or of all."""
        return [event for event in self.record.events if event["event"] == name and attempt in (None, event.get("attempt"))]

    @property
    def trained(self) -> int | None:
        """The newest attempt that trained; None: none has."""
        return next((each.number for each in reversed(self.launches) if each.updates), None)

    def steady(self) -> list[Line]:
        """The logged updates of the newest attempt that trained, without the first ones."""
        newest = self.trained
        lines = [line for line in self.record.updates if line.get("attempt", newest) == newest]
        return lines[WARM_UP:] if len(lines) > 2 * WARM_UP else []

    def steady_of(self, rank: int) -> list[Line]:
        """The rank's own lines of the same updates."""
        updates = {line["update"] for line in self.steady()}
        return [line for line in self.record.ranks.get(rank, []) if line["update"] in updates]


def look(folder: Path) -> Seen:
    """Everything that is recorded in `folder`. Raises CheckpointError when it holds no run."""
    from launcher.inspect.events import holder

    record = read_run(folder)
    launches, odd = _launches(record)
    resolved, why = _resolved(record)
    shape, no_shape = _shape(resolved)
    ended = bool(launches) and launches[-1].ended is not None
    absent = [name for name, value in (("memory.json", record.memory), ("plan.json", record.plan), ("environment.json", record.environment)) if value is None]
    absent += [name for name, value in (("metrics.jsonl", record.updates), ("events.jsonl", record.events)) if not value]
    missing = (*why, *no_shape, *odd, *(f"{name} is not there, or can't be read" for name in absent))
    is_running = not ended and holder(record.run_dir) is not None
    return Seen(record=record, launches=launches, resolved=resolved, shape=shape, is_running=is_running, missing=missing)


def _launches(record: RunRecord) -> tuple[tuple[Attempt, ...], tuple[str, ...]]:
    try:
        return tuple(attempts(record)), ()
    except Exception as error:  # noqa: BLE001  events that are damaged in a way nobody thought of
        return (), (f"the launches can't be told apart: {type(error).__name__}: {str(error)[:100]}",)


def _resolved(record: RunRecord) -> tuple[ResolvedSpec | None, tuple[str, ...]]:
    try:
        return ResolvedSpec.from_json(json.dumps(record.resolved)), ()
    except CheckpointError as error:
        return None, (f"resolved.json can't be used, so nothing is computed from the spec: {error.problems[0].what}",)


def _shape(resolved: ResolvedSpec | None) -> tuple[ModelShape | None, tuple[str, ...]]:
    from launcher.memory.launch_fit import shape_at_hand

    if resolved is None:
        return None, ()
    try:
        return shape_at_hand(resolved.spec.model), ()
    except FtError as error:
        return None, (f"no memory ledger: {error.problems[0].what}",)
    except Exception as error:  # noqa: BLE001  an odd model must not keep the doctor from the rest
        return None, (f"no memory ledger: {type(error).__name__}: {str(error)[:100]}",)


def errors_of(seen: Seen, attempt: int) -> list[Line]:
    """What processes of a launch said of their own end, whole, the first one first; of a rank, its file stands over its event."""
    found: dict[int | None, Line] = {}
    for event in seen.events("error", attempt):
        rank = event.get("rank")
        found.setdefault(rank if isinstance(rank, int) else None, {**event, "attempt": attempt})
    for path in sorted(seen.record.run_dir.attempt_logs(attempt).glob("rank_*.error.json")):
        error = recorded_object(_text(path))
        if error is not None and isinstance(error.get("rank"), int):
            found[error["rank"]] = {**found.get(error["rank"], {}), **error, "attempt": attempt}
    return sorted(found.values(), key=lambda each: (bool(each.get("lost_peer")), number(each, "time")))


def problem_of(error: Line) -> dict[str, Any]:
    """The first problem of an error: what, where, fix and place (`file:line`) as texts."""
    problems = error.get("problems")
    first = problems[0] if isinstance(problems, list) and problems and isinstance(problems[0], dict) else {}
    line = f":{first['line']}" if first.get("line") else ""
    place = f"{first['file']}{line}" if first.get("file") else ""
    return {**{name: str(first.get(name) or "") for name in ("what", "where", "fix")}, "place": place}


def problems_text(error: Line) -> str:
    """All that an error says, in one text."""
    problems = error.get("problems")
    return "\n".join(str(each.get("what") or "") for each in problems if isinstance(each, dict)) if isinstance(problems, list) else ""


def relative(seen: Seen, path: Path) -> str:
    """A file's name from the run's folder on."""
    return str(path.relative_to(seen.run)) if path.is_relative_to(seen.run) else str(path)


def host_of(seen: Seen, rank: int | None) -> str:
    """The host of a rank: as its own lines say, else by the run's hosts; empty when neither is known."""
    if rank is None:
        return ""
    own = next((str(line["host"]) for line in reversed(seen.record.ranks.get(rank, [])) if line.get("host")), "")
    first = 0
    for host in seen.resolved.hosts if seen.resolved is not None and not own else ():
        first += host.slots
        if rank < first:
            return host.name
    return own


def middle(values: Iterable[float]) -> float:
    """The median; 0 of nothing."""
    found = list(values)
    return statistics.median(found) if found else 0.0


def update_named(text: str) -> int | None:
    """The update that a message names."""
    matched = re.search(r"update ([0-9]+)", text)
    return int(matched[1]) if matched else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
