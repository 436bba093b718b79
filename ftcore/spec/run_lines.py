"""What a run's folder holds, read as it is: half lines, files that are missing and runs of earlier versions included."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.errors import CheckpointError
from ftcore.spec.recorded import recorded_object
from ftcore.spec.run_dir import RunDir

METRICS_SCHEMA = 1
"""`schema` of each line of metrics.jsonl and metrics/rank_R.jsonl; lines without it (0) were written before there was one."""
PHASES = ("data_wait", "forward", "backward", "communication", "idle", "optimizer", "checkpoint", "evaluation", "other")
"""What a rank's time is divided into; disjoint, and together all of it."""

_OLDER_FIELDS = {"data_wait": "data_wait_seconds", "forward": "forward", "backward": "backward", "optimizer": "step"}
"""Phase -> its field in a rank's line without phases; in metrics.jsonl their names begin with `seconds_`."""

Line = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything that a run wrote down of itself."""

    run_dir: RunDir
    resolved: dict[str, Any]
    """resolved.json, as it stands there; what is no section is left out of its spec."""
    updates: list[Line]
    """The lines of metrics.jsonl by update, each update once: as it was trained last."""
    ranks: dict[int, list[Line]]
    """Rank -> the lines of its own file, likewise."""
    events: list[Line]
    """events.jsonl, of all attempts, in the order in which they were written."""
    plan: dict[str, Any] | None
    memory: dict[str, Any] | None
    environment: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """What a line of metrics.jsonl tells of: the updates since the line before it. Sums over all ranks."""

    updates: int
    wall_s: float
    """Since the line before, with evaluations and checkpoints between the updates."""
    train_s: float
    """Of the updates alone: what rates are made of."""
    tokens: int
    supervised_tokens: int
    computed_tokens: int


def read_run(folder: Path, *, with_ranks: bool = True) -> RunRecord:
    """The record of the run in `folder`; without the ranks' own files unless they are asked for.

    Raises CheckpointError when the folder holds no resolved.json that can be read.
    """
    run_dir = RunDir(folder.absolute())
    resolved = _json_file(run_dir.resolved)
    if resolved is None:
        lies_there = os.path.lexists(run_dir.resolved)
        what = "is damaged" if lies_there else "holds no run"
        fix = "put resolved.json back as it was, or start the run again from its spec" if lies_there else "name a run folder that ftlaunch made"
        raise CheckpointError(f"{folder} {what}: no resolved.json that can be read", where=str(folder), fix=fix)
    updates = by_update(json_lines(run_dir.metrics))
    paths = sorted(run_dir.rank_metrics(0).parent.glob("rank_*.jsonl")) if with_ranks else []
    matched = [(re.fullmatch(r"rank_([0-9]+)\.jsonl", path.name), path) for path in paths]
    ranks = {int(match[1]): of_kept(by_update(json_lines(path)), updates, int(match[1])) for match, path in matched if match}
    return RunRecord(
        run_dir=run_dir,
        resolved={**resolved, "spec": _sections(resolved.get("spec"))},
        updates=updates,
        ranks=dict(sorted(ranks.items())),
        events=[event for event in json_lines(run_dir.events) if isinstance(event.get("event"), str)],
        plan=_json_file(run_dir.plan_json),
        memory=_json_file(run_dir.memory_json),
        environment=_json_file(run_dir.environment),
    )


def json_lines(path: Path) -> Iterator[Line]:
    """The JSON objects of a file of lines, in order; what is half written or no object is passed over. A missing file has none, nor has a pipe or a device."""
    if not path.is_file():
        return
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for text in file:
                found = recorded_object(text)
                if found is not None:
                    yield found
    except OSError:
        return


def by_update(lines: Iterable[Line]) -> list[Line]:
    """The lines that are of an update, each update once, in order: what was written last counts."""
    found = {line["update"]: line for line in lines if type(line.get("update")) is int}
    return [found[update] for update in sorted(found)]


def covered(line: Mapping[str, Any]) -> Covered:
    """What a line of metrics.jsonl covers; one without a schema tells of its own update alone."""
    own = number(line, "seconds")
    return Covered(
        updates=int(number(line, "phase_updates", 1)),
        wall_s=number(line, "phase_seconds", own),
        train_s=number(line, "window_train_seconds", own),
        **{name: int(number(line, f"window_{name}", number(line, name))) for name in ("tokens", "supervised_tokens", "computed_tokens")},
    )


def phases_of(line: Mapping[str, Any], whole_s: float | None = None) -> dict[str, float]:
    """Phase -> seconds of a line of either file, by PHASES.

    A line without phases has what waits in collectives in the pass or step that called them, and in other what is left of `whole_s`, which is the
    line's own seconds unless it is given.
    """
    phases = line.get("phases")
    if isinstance(phases, dict):
        return {phase: _seconds(phases.get(phase)) for phase in PHASES}
    found = {phase: max(0.0, number(line, field, number(line, f"seconds_{field}"))) for phase, field in _OLDER_FIELDS.items()}
    named = sum(found.values())
    whole_s = number(line, "seconds", named) if whole_s is None else whole_s
    return {**dict.fromkeys(PHASES, 0.0), **found, "other": max(0.0, whole_s - named)}


def summed_phases(lines: Iterable[Line]) -> dict[str, float]:
    """Phase -> seconds of all lines together, by PHASES."""
    found = dict.fromkeys(PHASES, 0.0)
    for line in lines:
        for phase, seconds in phases_of(line).items():
            found[phase] += seconds
    return found


def late_phase(lines: Iterable[Line]) -> str:
    """The phase of a rank in whose lateness the others waited longest; empty where nobody waited for it."""
    waited: dict[str, float] = {}
    for line in lines:
        if phase := str(line.get("late_phase") or ""):
            waited[phase] = waited.get(phase, 0.0) + number(line, "caused_idle_seconds")
    return max(sorted(waited), key=lambda phase: waited[phase], default="")


def _seconds(value: object) -> float:
    """Read a million times for a long run: nothing is asked twice."""
    if type(value) is float:
        return value if 0.0 <= value < math.inf else 0.0
    return float(value) if type(value) is int and 0 <= value < 1 << 63 else 0.0


def number(line: Mapping[str, Any], key: str, default: float = 0.0) -> float:
    """A finite number of a line; `default` for anything else, `nan` and `inf` as text included."""
    value = line.get(key)
    if type(value) is float and abs(value) < float("inf"):
        return value
    # Beyond 2^63 it is no count, and beyond 2^1024 no float.
    is_count = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    return float(value) if is_count and value is not None else default


def of_kept(lines: list[Line], updates: list[Line], rank: int) -> list[Line]:
    """A rank's lines without what a rank that is no longer there wrote of updates which others then trained again: `updates` are the lines of metrics.jsonl."""
    kept = {line["update"]: line for line in updates}

    def counts(line: Line) -> bool:
        known = kept.get(line["update"])
        if known is None:
            return True
        if "attempt" in line and "attempt" in known:
            return bool(line["attempt"] == known["attempt"])
        return rank < number(known, "world_size", float("inf"))

    return [line for line in lines if counts(line)]


def _sections(spec: Any) -> dict[str, Any]:
    """The sections of a spec that are some."""
    return {name: section for name, section in spec.items() if isinstance(section, dict)} if isinstance(spec, dict) else {}


def _json_file(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        return recorded_object(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
