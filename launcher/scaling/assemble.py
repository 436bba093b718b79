"""From measured points to the whole result: ratios, run times, what limits, agreement, notes. Pure but for the counts of the prepared data."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from ftcore.spec.scale_result import MEASURED, WAITING, ScalePoint, ScaleResult
from launcher.memory.cost import updates_of
from launcher.memory.lengths import DataLengths, training_lengths
from launcher.scaling.arithmetic import agree, device_minutes, set_against
from launcher.scaling.limiting import name_limit
from launcher.scaling.measure import Measurement
from launcher.scaling.notes import notes_of
from launcher.scaling.points import Wanted
from launcher.scaling.request import ScaleRequest


def blank_point(wanted: Wanted, state: str = WAITING, reason: str = "", *, exit_status: int = 0) -> ScalePoint:
    """A point without numbers."""
    batch, share = wanted.whole.spec.batch, wanted.share
    return ScalePoint(
        name=wanted.name,
        ranks=wanted.ranks,
        stage=wanted.stage,
        hosts={} if wanted.scheduler is not None else {host.name: host.slots for host in wanted.cut.hosts},
        state=state,
        reason=reason,
        exit_status=exit_status,
        accelerators=share.accelerators,
        cores=share.cores,
        threads=wanted.threads,
        oversubscribed=share.oversubscribed,
        devices=share.devices,
        global_batch_size=batch.global_batch_size,
        tokens_per_update=batch.tokens_per_update,
    )


def measured_point(blank: ScalePoint, measured: Measurement, key: str) -> ScalePoint:
    """The point with its own numbers; what depends on other points is still to come."""
    rate = measured.supervised_tokens / measured.update_seconds
    return replace(
        blank,
        state=MEASURED,
        reason="",
        exit_status=0,
        key=key,
        measured_at=time.time(),
        updates_measured=measured.updates,
        window_seconds=measured.window_seconds,
        update_seconds=measured.update_seconds,
        spread=measured.spread,
        tokens=measured.tokens,
        supervised_tokens=measured.supervised_tokens,
        tokens_per_s=measured.tokens / measured.update_seconds,
        supervised_tokens_per_s=rate,
        supervised_tokens_per_s_per_rank=rate / blank.ranks,
        phases=measured.phases,
        row_tokens=measured.row_tokens,
        held_up_seconds=measured.held_up_seconds,
        late_rank=measured.late_rank,
        peak_memory_bytes=max(measured.peak_bytes),
        losses=measured.losses,
    )


def assemble(request: ScaleRequest, wanted: Iterable[Wanted], points: Iterable[ScalePoint]) -> ScaleResult:
    """The result of the points as they are; those measured by `wanted` get the whole run's length as well."""
    by_name, lengths = {each.name: each for each in wanted}, training_lengths(request.resolved)
    spec = request.resolved.spec
    result = ScaleResult(
        spec=request.spec_name,
        model=spec.model.model_name_or_path,
        mode=request.mode,
        precision=spec.train.precision,
        method=spec.method.type,
        warm_up=request.warm_up,
        windows=request.windows,
        updates=request.windows * request.window_updates,
        points=tuple(_with_run(point, by_name.get(point.name), lengths) for point in points),
        price_per_hour=spec.hardware.price_per_hour,
        currency=spec.hardware.currency,
    )
    result = agree(set_against(result), request.tolerance)
    result = replace(result, points=tuple(_with_limit(result, point) for point in result.points))
    return replace(result, notes=notes_of(request, result, lengths))


def _with_run(point: ScalePoint, wanted: Wanted | None, lengths: DataLengths) -> ScalePoint:
    """The whole run at the point's speed: training alone, without starting, evaluating and saving."""
    if wanted is None or point.update_seconds is None:
        return point
    updates = updates_of(wanted.whole, lengths)
    minutes = updates * point.update_seconds / 60
    devices = point.devices or point.ranks
    return replace(point, run_updates=updates, run_minutes=minutes, device_minutes=device_minutes(minutes, devices))


def _with_limit(result: ScaleResult, point: ScalePoint) -> ScalePoint:
    base = result.baseline(point.stage)
    return replace(point, limiting=name_limit(point, base)) if point.is_measured and base is not None else point
