"""Speeds that were measured, of a scaling test, a pilot or a run: how far each may be off, and how long it took to start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ftcore.spec.run_record import RunRecord, covered, number, read_run
from ftcore.spec.scale_result import ScaleDir, ScaleResult, read_scale
from launcher.simulation.anchor import WARM_UP, Anchor, read_anchors

SCALE = "scale.json"
BLOCKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """What so many ranks reached in one ZeRO stage."""

    anchor: Anchor
    spread: float
    """Half of (slowest - fastest part of the measurement) over its mean; 0: it was not measured in parts."""
    start_s: float | None = None
    """From the launch to its first update; None: not measured."""
    stall_s: float | None = None
    """What a save held up training; None: not measured."""
    write_s: float | None = None
    """From a save's begin to where it counted."""

    @property
    def ranks(self) -> int:
        """Of the measurement."""
        return self.anchor.ranks

    @property
    def stage(self) -> int:
        """Its ZeRO stage."""
        return self.anchor.stage


def read_measured(paths: Sequence[Path]) -> list[MeasuredSpeed]:
    """Every measured point of scale.json, pilot.json or run folders. Raises CheckpointError for a path without one."""
    return [speed for path in paths for speed in _read(path)]


def _read(path: Path) -> list[MeasuredSpeed]:
    anchors = read_anchors(path)
    if path.name == SCALE or (path / SCALE).is_file():
        return _of_scale(path, anchors)
    record = read_run(path if path.is_dir() else path.parent, with_ranks=False)
    stall_s, write_s = save_seconds(record)
    start_s = start_seconds(record)
    return [MeasuredSpeed(anchor=each, spread=_spread(record, each.ranks), start_s=start_s, stall_s=stall_s, write_s=write_s) for each in anchors]


def _of_scale(path: Path, anchors: Sequence[Anchor]) -> list[MeasuredSpeed]:
    result = read_scale(path)
    spreads = {(point.ranks, point.stage): point.spread or 0.0 for point in result.measured}
    if result.mode != "strong":
        # The other points of a stage have larger updates than the spec.
        fewest = {stage: min(each.ranks for each in anchors if each.stage == stage) for stage in {each.stage for each in anchors}}
        anchors = [each for each in anchors if each.ranks == fewest[each.stage]]
    starts = _starts(ScaleDir(path if path.is_dir() else path.parent), result)
    return [MeasuredSpeed(anchor=each, spread=spreads.get((each.ranks, each.stage), 0.0) / 2, start_s=starts.get((each.ranks, each.stage))) for each in anchors]


def _starts(folder: ScaleDir, result: ScaleResult) -> dict[tuple[int, int], float]:
    """(ranks, stage) -> from the launch of a point's own run to its first update, for those whose folder is still there."""
    runs = {(point.ranks, point.stage): folder.point(point.name) for point in result.measured}
    found = {key: start_seconds(read_run(run, with_ranks=False)) for key, run in runs.items() if (run / "resolved.json").is_file()}
    return {key: seconds for key, seconds in found.items() if seconds is not None}


def _spread(record: RunRecord, ranks: int) -> float:
    """Between thirds of what so many ranks trained, woven into one another, so that unlike updates fall on all of them."""
    lines = [line for line in record.updates if number(line, "world_size", ranks) == ranks and number(line, "update") > WARM_UP]
    rates = [part.tokens / part.train_s for part in map(covered, lines) if part.train_s > 0]
    means = [fmean(rates[at::BLOCKS]) for at in range(BLOCKS)] if len(rates) >= BLOCKS else []
    return (max(means) - min(means)) / (2 * fmean(means)) if means else 0.0


def start_seconds(record: RunRecord) -> float | None:
    """From the newest launch that came to training to the begin of its loop; None where the events don't tell."""
    begun = {int(number(event, "attempt")): number(event, "time") for event in record.events if event["event"] == "loop_start"}
    for event in reversed(record.events):
        started = number(event, "time")
        loop = begun.get(int(number(event, "attempt")), 0.0) if event["event"] == "launch_started" else 0.0
        if loop > started > 0:
            return loop - started
    return None


def save_seconds(record: RunRecord) -> tuple[float | None, float | None]:
    """(what a save held up training, seconds until it counted) of the saves on the way, on average; None where nothing tells.

    A save of update N is begun when N is done, and counts when its event says so; what it holds up is the phase `checkpoint`.
    """
    ended = {int(number(line, "update")): number(line, "time") for line in record.updates if number(line, "time") > 0}
    last = max(ended, default=0)
    told = {int(number(event, "update")): number(event, "time") for event in record.events if event["event"] == "checkpoint"}
    saved = [update for update in told if 0 < update < last]
    if not saved:
        return None, None
    held = [number(line["phases"], "checkpoint") for line in record.updates if isinstance(line.get("phases"), dict)]
    # With logging.logging_steps over 1 a save may lie between two lines: only of the others is it known when they were begun.
    writes = [max(0.0, told[update] - ended[update]) for update in saved if update in ended]
    return (sum(held) / len(saved) if held else None), (fmean(writes) if writes else None)
