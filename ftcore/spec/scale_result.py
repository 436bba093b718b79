"""SCALE/scale.json: what `ftlaunch scale` measured, point by point. Written by the launcher, read by it and by the page's process."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from ftcore.spec.errors import CheckpointError
from ftcore.spec.resolved import build

SCALE_SCHEMA = 1
DISTURBED = 0.25
"""Cores that others keep busy from which a point's times are doubted."""
MEASURED, WAITING, QUEUED, RUNNING = "measured", "waiting", "queued", "running"
FAILED, DOES_NOT_FIT, REFUSED = "failed", "does_not_fit", "refused"
STATES = (MEASURED, WAITING, QUEUED, RUNNING, FAILED, DOES_NOT_FIT, REFUSED)
BAD_STATES = (FAILED, DOES_NOT_FIT, REFUSED)
"""States of points that can't be measured as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint:
    """One number of ranks in one ZeRO stage. Numbers are None until it is measured; ratios are against the baseline of its stage."""

    name: str
    """Also the name of its run folder, in SCALE/points."""
    ranks: int
    stage: int
    hosts: dict[str, int]
    """Host -> ranks on it; a job's hosts are not known before it runs."""
    state: str
    """One of STATES."""
    reason: str = ""
    """Why it is not measured, or what is odd about it."""
    exit_status: int = 0
    """Of a point that can't be measured: what `ftlaunch` would have ended with."""
    job: str = ""
    """Of Slurm; empty for a point that is measured here."""
    key: str = ""
    """Digest of all that the measurement depends on: spec, hosts, threads, code, data files."""
    measured_at: float = 0.0
    """Seconds since the epoch."""
    accelerators: int | None = None
    """That the ranks run on; None: they run on CPU cores."""
    cores: int | None = None
    """CPU cores that the ranks can keep busy; None: they run on accelerators, or nobody knows."""
    threads: int | None = None
    """OMP_NUM_THREADS of each rank; None: left as it is, next to accelerators."""
    oversubscribed: bool = False
    """More ranks (times threads) than cores."""
    busy_cores: float | None = None
    """Of this machine, that other processes kept busy when the point began; None: not looked at."""
    global_batch_size: int | None = None
    """Samples of an update; None: tokens_per_update decides."""
    tokens_per_update: int | None = None
    updates_measured: int = 0
    """After the warm-up."""
    window_seconds: tuple[float, ...] = ()
    """Seconds an update in each window, scaled to the mean tokens of an update: windows hold different samples."""
    update_seconds: float | None = None
    """Their median."""
    spread: float | None = None
    """(slowest window - fastest window) / update_seconds."""
    tokens: float | None = None
    """Of an update, on average."""
    supervised_tokens: float | None = None
    speedup: float | None = None
    """Strong: seconds of the baseline / seconds. Weak: tokens/s / tokens/s of the baseline."""
    ideal_speedup: float | None = None
    """ranks / ranks of the baseline."""
    efficiency: float | None = None
    """speedup / ideal_speedup."""
    normalised_efficiency: float | None = None
    """The same by cores that were used in place of ranks."""
    run_updates: int | None = None
    """Of the whole run that the spec describes, cut as this point cuts it."""
    run_minutes: float | None = None
    """The whole run's training at this speed."""
    devices: int | None = None
    """Accelerators, or what cores have room for of ranks: what device_minutes counts."""
    device_minutes: float | None = None
    """run_minutes * devices."""
    tokens_per_s: float | None = None
    supervised_tokens_per_s: float | None = None
    supervised_tokens_per_s_per_rank: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    """Phase -> seconds an update, mean over ranks, of the windows that update_seconds comes from; scaled as these."""
    row_tokens: float | None = None
    """Of a micro-step, on average over ranks, padding included."""
    held_up_seconds: float | None = None
    """Of an update, in which a rank was ready to compute and its host had no processor free, mean over ranks; None: not measured."""
    late_rank: str = ""
    """Which rank most of the idle time is for, and in which phase it was; empty: no single one, or nobody waits."""
    peak_memory_bytes: int | None = None
    """Of the rank that holds most: allocated on an accelerator, resident on a CPU."""
    limiting: str = ""
    """What keeps it from scaling better, in words."""
    losses: tuple[float | None, ...] = ()
    """Of each update, warm-up included; None: not a finite number."""
    loss_gap: float | None = None
    """Strong: largest relative distance from the reference's losses."""

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes kept so many cores busy that its times are doubted."""
        return (self.busy_cores or 0.0) >= DISTURBED

    @property
    def is_measured(self) -> bool:
        """Whether it has numbers."""
        return self.state == MEASURED


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Strong scaling: whether all points trained the same."""

    reference: str
    """Name of the point that the others are compared with."""
    largest_loss_gap: float | None
    """Relative; None: a loss is missing or no number."""
    tolerance: float
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleResult:
    """All points of one test."""

    spec: str
    """What the spec is called."""
    model: str
    mode: str
    """strong or weak."""
    precision: str
    warm_up: int
    """Updates at the beginning of each point that are not counted."""
    windows: int
    updates: int
    """Counted, in all windows of a point together."""
    points: tuple[ScalePoint, ...]
    agreement: Agreement | None = None
    """None: weak mode, or fewer than two points are measured."""
    notes: tuple[str, ...] = ()
    """What a reader has to know of how it was measured."""
    price_per_hour: float | None = None
    """Of a device, as the spec says."""
    currency: str = ""
    method: str = ""
    """method.type; empty: written before it was kept."""
    schema: int = SCALE_SCHEMA

    @property
    def measured(self) -> tuple[ScalePoint, ...]:
        """The points with numbers."""
        return tuple(point for point in self.points if point.is_measured)

    def baseline(self, stage: int) -> ScalePoint | None:
        """What the points of a stage are compared with: its smallest measured number of ranks. None: none is measured."""
        return min((point for point in self.measured if point.stage == stage), key=lambda point: point.ranks, default=None)

    def to_json(self) -> str:
        """Indented JSON with a final newline; `parse_result` gives back an equal value."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


@dataclass(frozen=True, slots=True)
class ScaleDir:
    """SCALE and what lies in it. Nothing here touches the disk."""

    path: Path

    @property
    def result(self) -> Path:
        return self.path / "scale.json"

    @property
    def request(self) -> Path:
        """What was asked for; `ftlaunch scale SCALE` goes on with it."""
        return self.path / "request.json"

    @property
    def page(self) -> Path:
        return self.path / "scale.html"

    @property
    def table(self) -> Path:
        """The result as text for a terminal."""
        return self.path / "scale.txt"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def points(self) -> Path:
        return self.path / "points"

    def point(self, name: str) -> Path:
        """The run folder of a point."""
        return self.points / name


def parse_result(text: str) -> ScaleResult:
    """The value that `to_json` wrote. Raises CheckpointError for anything else."""
    try:
        data = json.loads(text, parse_constant=_refuse)
        if data.get("schema") != SCALE_SCHEMA:
            raise ValueError(f"schema {data.get('schema')!r}, this ftlaunch reads {SCALE_SCHEMA}")
        result: ScaleResult = build(ScaleResult, data)
        for point in result.points:
            _check(point)
        return result
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"not a result of ftlaunch scale: {error}", where="scale.json", fix="measure again, in a new folder") from error


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _check(point: ScalePoint) -> None:
    """Raises ValueError for numbers that no measurement gives, and that nothing can be counted with."""
    speeds = (point.update_seconds, point.tokens, point.tokens_per_s)
    if point.ranks < 1 or not all(0 < each < math.inf for each in speeds if each is not None):
        raise ValueError(f"{point.name}: {point.ranks} ranks, {point.update_seconds} s an update, {point.tokens_per_s} tokens/s")


def read_scale(path: Path) -> ScaleResult:
    """The result in SCALE/scale.json; `path` is that file or its folder. Raises CheckpointError when it is missing or damaged."""
    file = ScaleDir(path).result if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise CheckpointError(f"can't read {file}: {reason}", where=str(path), fix="name a folder that ftlaunch scale made") from error
    return parse_result(text)
