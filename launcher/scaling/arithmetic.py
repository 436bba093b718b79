"""The arithmetic of scaling: speedup, efficiency, device time, agreement of losses. Pure functions over points.

Strong: the same work on more ranks, E(N) = T(B)·B / (T(N)·N) against the baseline B, in general one rank (Amdahl 1967).
Weak: work grows with the ranks, E(N) = (rate(N) / N) / (rate(B) / B), rate in tokens/s (Gustafson 1988).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ftcore.spec.scale_result import Agreement, ScalePoint, ScaleResult
from launcher.scaling.request import STRONG


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """A point against its baseline."""

    speedup: float
    ideal_speedup: float
    efficiency: float
    normalised_efficiency: float


def strong_ratios(base_s: float, base_ranks: int, seconds: float, ranks: int, *, cores: tuple[float, float] | None = None) -> Ratios:
    """From seconds an update of the same samples; `cores` are those used by (baseline, point), None where ranks count."""
    return _ratios(base_s / seconds, base_ranks, ranks, cores)


def weak_ratios(base_rate: float, base_ranks: int, rate: float, ranks: int, *, cores: tuple[float, float] | None = None) -> Ratios:
    """From tokens/s of updates that grow with the ranks; `cores` as in `strong_ratios`."""
    return _ratios(rate / base_rate, base_ranks, ranks, cores)


def _ratios(speedup: float, base_ranks: int, ranks: int, cores: tuple[float, float] | None) -> Ratios:
    ideal = ranks / base_ranks
    by_cores = speedup / (cores[1] / cores[0]) if cores is not None else speedup / ideal
    return Ratios(speedup=speedup, ideal_speedup=ideal, efficiency=speedup / ideal, normalised_efficiency=by_cores)


def device_minutes(minutes: float, devices: int) -> float:
    """Minutes of a run on so many devices, as a bill counts them: 60 minutes on 2 are 120."""
    return minutes * devices


def set_against(result: ScaleResult) -> ScaleResult:
    """The result with every ratio of its measured points: within a stage against its smallest number of ranks."""
    return replace(result, points=tuple(_against_baseline(result, point) for point in result.points))


def _against_baseline(result: ScaleResult, point: ScalePoint) -> ScalePoint:
    base = result.baseline(point.stage)
    if base is None or not point.is_measured or not (base.update_seconds and point.update_seconds and base.tokens_per_s and point.tokens_per_s):
        return point
    cores = (float(base.cores), float(point.cores)) if base.cores and point.cores else None
    if result.mode == STRONG:
        ratios = strong_ratios(base.update_seconds, base.ranks, point.update_seconds, point.ranks, cores=cores)
    else:
        ratios = weak_ratios(base.tokens_per_s, base.ranks, point.tokens_per_s, point.ranks, cores=cores)
    return replace(
        point,
        speedup=ratios.speedup,
        ideal_speedup=ratios.ideal_speedup,
        efficiency=ratios.efficiency,
        normalised_efficiency=ratios.normalised_efficiency,
    )


def loss_gap(losses: tuple[float | None, ...], reference: tuple[float | None, ...]) -> float | None:
    """The largest relative distance of two runs' losses, update by update; None when one is missing or no number."""
    if not losses or len(losses) != len(reference):
        return None
    gaps = []
    for loss, other in zip(losses, reference, strict=True):
        if loss is None or other is None or not (math.isfinite(loss) and math.isfinite(other)):
            return None
        gaps.append(0.0 if loss == other else abs(loss - other) / max(abs(other), 1e-12))
    return max(gaps)


def agree(result: ScaleResult, tolerance: float) -> ScaleResult:
    """The result with the losses of all points compared with those of the first one measured; weak points train other updates and are not compared."""
    measured = result.measured
    if result.mode != STRONG or not measured:
        return replace(result, agreement=None)
    reference = measured[0]
    points = tuple(replace(point, loss_gap=loss_gap(point.losses, reference.losses)) if point.is_measured else point for point in result.points)
    gaps = [point.loss_gap for point in points if point.is_measured]
    known = [gap for gap in gaps if gap is not None]
    largest = max(known) if len(known) == len(gaps) else None
    if len(gaps) < 2:
        return replace(result, points=points, agreement=None)
    passed = largest is not None and largest <= tolerance
    return replace(result, points=points, agreement=Agreement(reference=reference.name, largest_loss_gap=largest, tolerance=tolerance, passed=passed))
