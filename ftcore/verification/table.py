"""A verdict as a table for a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ftcore.spec.verification import Split, VerificationRequest
from ftcore.verification.records import UpdateRecord
from ftcore.verification.tolerance import Distance
from ftcore.verification.verdict import SplitVerdict, Verdict

HEADER = ("split", "ranks", "ZeRO", "budget", "layout", "loss", "grad norm", "loss gap", "norm gap", "parameter gap", "largest in", "")
NAMED = 40
"""Characters of a parameter's name that are shown, its last ones."""


def render(request: VerificationRequest, records: Mapping[str, Sequence[UpdateRecord]], verdict: Verdict) -> str:
    """The table, the tolerances with the floor they come from, what was left out, and PASS or FAIL with what differs."""
    by_name = {each.name: each for each in verdict.splits}
    rows = [HEADER, *(_row(split, records[split.name], by_name.get(split.name)) for split in request.splits)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += ["", *_tolerances(request, verdict)]
    lines += [f"left out: {each.name}: {each.reason}" for each in request.left_out]
    lines += [f"note: {note}" for note in request.notes]
    lines += ["", *_outcome(request, verdict)]
    return "\n".join(lines) + "\n"


def as_data(request: VerificationRequest, records: Mapping[str, Sequence[UpdateRecord]], verdict: Verdict) -> dict[str, Any]:
    """Everything of the table and each update's numbers, JSON-ready; values that are not finite are text."""
    data = {
        "passed": not verdict.failed,
        "failed": list(verdict.failed),
        "updates": request.updates,
        "precision": request.precision,
        "floor": dataclasses.asdict(verdict.floor),
        "tolerance": dataclasses.asdict(verdict.tolerance),
        "splits": [dataclasses.asdict(split) | {"updates": [_update(record) for record in records[split.name]]} for split in request.splits],
        "verdicts": [dataclasses.asdict(each) for each in verdict.splits],
        "left_out": [dataclasses.asdict(each) for each in request.left_out],
        "notes": list(request.notes),
    }
    finite: dict[str, Any] = _finite(data)
    return finite


def _row(split: Split, records: Sequence[UpdateRecord], verdict: SplitVerdict | None) -> tuple[str, ...]:
    ranks = f"{split.world_size} -> {split.then_world_size}" if split.then_world_size else f"{split.world_size}"
    stage = f"{split.zero_stage} -> {split.then_zero_stage}" if split.then_world_size else f"{split.zero_stage}"
    shared = (split.name, ranks, stage, f"{split.micro_batch_tokens:,}", split.layout)
    curves = (_curve([record.loss for record in records]), _curve([record.grad_norm for record in records]))
    if verdict is None:
        return (*shared, *curves, "-", "-", "-", "", "reference")
    gaps = (f"{verdict.distance.loss:.1e}", f"{verdict.distance.grad_norm:.1e}", f"{verdict.distance.parameters:.1e}")
    largest = f"{verdict.gap.largest:.1e} {verdict.gap.name[-NAMED:]}"
    return (*shared, *curves, *gaps, largest, "FAIL" if verdict.faults else "ok")


def _tolerances(request: VerificationRequest, verdict: Verdict) -> list[str]:
    floor, allowed = verdict.floor, verdict.tolerance
    measured = f"noise floor ({request.precision}, the reference against {request.others[0].name})"
    tolerated = f"tolerated (10 times the floor, within the bounds of {request.precision} and {request.optimizer})"
    return [f"{name}: {_shown(distance)}" for name, distance in ((measured, floor), (tolerated, allowed))]


def _shown(distance: Distance) -> str:
    return f"loss {distance.loss:.1e}, gradient norm {distance.grad_norm:.1e}, parameters {distance.parameters:.1e}"


def _outcome(request: VerificationRequest, verdict: Verdict) -> list[str]:
    if not verdict.failed:
        count = len(request.splits)
        return [f"PASS: {count} runs of the same {request.updates} updates agree"]
    lines = [f"FAIL: {', '.join(verdict.failed)}"]
    for split in verdict.splits:
        lines += [f"  {split.name}: {fault}" for fault in split.faults]
    return lines


def _curve(values: Sequence[float | None]) -> str:
    first, last = values[0], values[-1]
    return f"{_number(first)} -> {_number(last)}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"


def _update(record: UpdateRecord) -> dict[str, Any]:
    return {"update": record.update, "loss": record.loss, "grad_norm": record.grad_norm, "stepped": record.stepped, "samples": len(record.samples)}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
