"""Whether the splits agree: each compared with the reference, what differs named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ftcore.verification.parameters import ParameterGap
from ftcore.verification.records import UpdateRecord
from ftcore.verification.tolerance import Distance, least_tolerance, tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitVerdict:
    """One split against the reference."""

    name: str
    distance: Distance
    gap: ParameterGap
    faults: tuple[str, ...]
    """What is beyond its tolerance or not the same at all; empty: it passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All splits against the reference."""

    floor: Distance
    """Between the reference and the same split with its samples reordered."""
    tolerance: Distance
    splits: tuple[SplitVerdict, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the splits that don't pass."""
        return tuple(split.name for split in self.splits if split.faults)


def judge(records: Mapping[str, Sequence[UpdateRecord]], gaps: Mapping[str, ParameterGap], *, precision: str, optimizer: str) -> Verdict:
    """The verdict on the splits of `records`, of which the first is the reference and the second the reference reordered.

    `gaps` holds the parameter gap of each but the reference.
    """
    reference, reordered, *_ = records
    distances = {name: _distance(records[name], records[reference], gaps[name]) for name in records if name != reference}
    floor = distances[reordered]
    allowed = tolerance(floor, least_tolerance(precision, optimizer))
    splits = tuple(
        SplitVerdict(name=name, distance=distance, gap=gaps[name], faults=tuple(_faults(records[name], records[reference], gaps[name], allowed)))
        for name, distance in distances.items()
    )
    return Verdict(floor=floor, tolerance=allowed, splits=splits)


def relative(value: float | None, reference: float | None) -> float:
    """|value - reference| / |reference|; 0 where both are the same, infinity where one is missing, not finite, or the reference 0."""
    if value == reference:
        return 0.0
    if value is None or reference is None or reference == 0.0:
        return math.inf
    gap = abs(value - reference) / abs(reference)
    return gap if math.isfinite(gap) else math.inf


def _distance(split: Sequence[UpdateRecord], reference: Sequence[UpdateRecord], gap: ParameterGap) -> Distance:
    pairs = list(zip(split, reference, strict=True))
    return Distance(
        loss=max(relative(one.loss, other.loss) for one, other in pairs),
        grad_norm=max(relative(one.grad_norm, other.grad_norm) for one, other in pairs),
        parameters=gap.overall if math.isfinite(gap.overall) else math.inf,
    )


def _faults(split: Sequence[UpdateRecord], reference: Sequence[UpdateRecord], gap: ParameterGap, allowed: Distance) -> list[str]:
    faults = []
    pairs = list(zip(split, reference, strict=True))
    for one, other in pairs:
        if one.samples != other.samples or not one.samples:
            faults.append(f"update {one.update} holds other samples: {_difference(one.samples, other.samples)}")
        if one.stepped != other.stepped:
            took = "took its step" if one.stepped else "took no step"
            faults.append(f"update {one.update} {took}, unlike the reference's")
    faults += _beyond("loss", [(one.update, one.loss, other.loss) for one, other in pairs], allowed.loss)
    faults += _beyond("gradient norm", [(one.update, one.grad_norm, other.grad_norm) for one, other in pairs], allowed.grad_norm)
    if not gap.overall <= allowed.parameters:
        faults.append(f"the parameters lie {gap.overall:.2g} of the training's move apart, {allowed.parameters:.2g} is tolerated; most in {gap.name}")
    return faults


def _beyond(what: str, values: list[tuple[int, float | None, float | None]], allowed: float) -> list[str]:
    """The first update whose value is too far off: what follows it follows from it."""
    for update, value, reference in values:
        gap = relative(value, reference)
        if not gap <= allowed:
            return [f"the {what} of update {update} is {_shown(value)}, the reference's {_shown(reference)}: {gap:.2g} apart, {allowed:.2g} is tolerated"]
    return []


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.7g}"


def _difference(one: Sequence[int], other: Sequence[int]) -> str:
    only, missing = sorted(set(one) - set(other)), sorted(set(other) - set(one))
    if not only and not missing:
        return f"{len(one)} ids, the reference has {len(other)}"
    return f"{len(only)} that the reference has not ({_first(only)}), {len(missing)} of its own missing ({_first(missing)})"


def _first(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:5])) + (", ..." if len(ids) > 5 else "") if ids else "none"
