"""`ftlaunch pilot`: a few updates of a run for real, set against its ledger and its forecast, and what the whole run takes by that."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ftcore.spec.errors import CheckpointError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import ScheduleSection
from launcher.json_lines import Message, json_object
from launcher.memory.activation_row import Row
from launcher.memory.capacity import Capacity
from launcher.memory.cost import Forecast, forecast_of, run_data
from launcher.memory.items import Item, Ledger, held_in
from launcher.memory.ledger import build_ledger
from launcher.memory.lengths import DataLengths
from launcher.memory.shape import ModelShape

WARM_UP = 2
"""Updates at the beginning that say nothing of speed: memory is allocated, kernels are chosen."""
LEAST_UPDATES = WARM_UP + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the pilot's own run showed."""

    updates: int
    """All of them, warm-up included."""
    update_s: float
    """Median over the updates after the warm-up."""
    tokens_per_s: float
    supervised_tokens_per_s: float
    peak_bytes: tuple[int, ...]
    """By rank: the accelerator's peak allocation, or on a CPU the largest resident size."""
    row_tokens: int
    """Tokens of the largest micro-step, as an average of its update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotResult:
    """A pilot set against the plan."""

    measured: Measured
    ledger: Ledger
    """For micro-steps like the pilot's."""
    expected_bytes: int
    """Of a rank by that ledger, in what was measured."""
    most_bytes: int
    """Of a rank at the largest micro-step that the spec allows: the whole run's ledger, corrected by what was measured beside the pilot's."""
    forecast: Forecast
    """For the whole run."""
    total_s: float
    """The whole run at the measured speed."""
    capacity: Capacity
    device_hours: float
    price: float | None

    @property
    def room_bytes(self) -> int | None:
        """What a rank can have; None where it is not known."""
        return self.capacity.device_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the whole run fits; None where the room is not known."""
        return None if self.room_bytes is None else self.most_bytes <= self.room_bytes


def pilot_spec(resolved: ResolvedSpec, updates: int) -> ResolvedSpec:
    """The run cut to its first updates, with no evaluation, no early stop and no saving on the way; everything that takes memory stays."""
    spec = resolved.spec
    cut = dataclasses.replace(
        spec,
        data=dataclasses.replace(spec.data, eval=None, eval_sets={}),
        schedule=_shortened(spec.schedule, updates),
        train=dataclasses.replace(spec.train, max_steps=updates, num_train_epochs=None),
        checkpoint=dataclasses.replace(spec.checkpoint, save_steps=0, metric_for_best_model=""),
        evaluation=dataclasses.replace(spec.evaluation, eval_steps=0, early_stopping_patience=0),
        logging=dataclasses.replace(spec.logging, logging_steps=1),
        profiling=dataclasses.replace(spec.profiling, updates=0),
        cluster=dataclasses.replace(spec.cluster, max_restarts=0),
    )
    return dataclasses.replace(resolved, spec=cut)


def _shortened(schedule: ScheduleSection, updates: int) -> ScheduleSection:
    """The run's warm-up, or as much of it as fits, and no fall after it: memory and time don't depend on the learning rate."""
    steps = None if schedule.warmup_steps is None else min(schedule.warmup_steps, updates)
    return ScheduleSection(lr_scheduler_type="constant_with_warmup", warmup_ratio=schedule.warmup_ratio, warmup_steps=steps)


def read_measured(run_dir: RunDir, ranks: int) -> Measured:
    """What a finished pilot left in its metrics. Raises CheckpointError when they lack updates."""
    lines = _lines(run_dir.metrics)
    updates = [line for line in lines if isinstance(line.get("seconds"), float)]
    if len(updates) < LEAST_UPDATES:
        raise CheckpointError(f"the pilot has {len(updates)} updates in {run_dir.metrics.name}, {LEAST_UPDATES} are needed", fix="start the pilot again")
    timed = updates[WARM_UP:]
    seconds = sum(line["seconds"] for line in timed)
    by_rank = [_lines(run_dir.rank_metrics(rank)) for rank in range(ranks)]
    peaks = tuple(max((int(line["peak_memory_bytes"]) for line in lines), default=0) for lines in by_rank)
    rows = [line.get("computed_tokens", line["tokens"]) // max(1, line["micro_steps"]) for lines in by_rank for line in lines]
    return Measured(
        updates=len(updates),
        update_s=median(line["seconds"] for line in timed),
        tokens_per_s=sum(line["tokens"] for line in timed) / seconds,
        supervised_tokens_per_s=sum(line["supervised_tokens"] for line in timed) / seconds,
        peak_bytes=peaks,
        row_tokens=max(rows, default=1),
    )


def _lines(path: Path) -> list[Message]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [found for line in text.splitlines() if (found := json_object(line)) is not None]


def compare(resolved: ResolvedSpec, shape: ModelShape, capacity: Capacity, measured: Measured) -> PilotResult | None:
    """The pilot of `resolved` (the whole run) beside its plan; None where the accelerator is not known, and nothing can be set beside it."""
    if capacity.accelerator is None:
        return None
    on_cpu, data = capacity.is_shared, run_data(resolved)
    here = build_ledger(resolved, shape, _row(resolved, data.train, measured.row_tokens, on_cpu=on_cpu), on_cpu=on_cpu)
    largest = build_ledger(resolved, shape, on_cpu=on_cpu)
    expected, most = (rank_bytes(ledger, on_cpu=on_cpu) for ledger in (here, largest))
    forecast = forecast_of(resolved, shape, here.trained, capacity.accelerator, data)
    # Updates have unlike numbers of samples and tokens; their speed is alike.
    update_s = forecast.portion.tokens / measured.tokens_per_s
    total = forecast.updates * update_s + forecast.evaluation_s * update_s / forecast.update.total_s
    hours = total * forecast.ranks / 3600
    price = resolved.spec.hardware.price_per_hour
    return PilotResult(
        measured=measured,
        ledger=here,
        expected_bytes=expected,
        most_bytes=max(*measured.peak_bytes, most + max(measured.peak_bytes) - expected),
        forecast=forecast,
        total_s=total,
        capacity=capacity,
        device_hours=hours,
        price=None if price is None else price * hours,
    )


def _row(resolved: ResolvedSpec, lengths: DataLengths, tokens: int, *, on_cpu: bool) -> Row:
    """A micro-step of so many tokens, of samples of average length."""
    length = max(1, min(round(lengths.mean), tokens))
    samples, rest = divmod(tokens, length)
    padded = resolved.spec.batch.layout == "padded"
    segments = (length,) * samples + ((rest,) if rest and not padded else ())
    supervised = max(1, min(sum(segments), round(sum(segments) * lengths.supervised_share)))
    return Row(segments=segments, supervised=supervised, padded=padded, on_cpu=on_cpu)


def rank_bytes(ledger: Ledger, *, on_cpu: bool) -> int:
    """What the ledger expects a rank's peak to be measured as: on a CPU the process's own memory and what it holds of the host are in it."""
    if not on_cpu:
        return sum(item.bytes for item in measured_items(ledger, on_cpu=False))
    return ledger.device_peak_bytes + sum(item.bytes for item in ledger.items if _on_host(item, ledger.peak_phase))


def measured_items(ledger: Ledger, *, on_cpu: bool) -> list[Item]:
    """The items that a measured peak holds: on an accelerator all that torch's allocator gave, which NCCL's buffers and the context are not."""
    held = [item for item in ledger.items if item.place == "device" and item.scope == "rank" and held_in(item, ledger.peak_phase)]
    if on_cpu:
        return [*held, *(item for item in ledger.items if _on_host(item, ledger.peak_phase))]
    return [item for item in held if item.group not in ("communication", "process")]


def _on_host(item: Item, phase: str) -> bool:
    return item.place == "host" and item.scope == "rank" and held_in(item, phase)
