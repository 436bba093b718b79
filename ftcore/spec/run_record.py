"""A run as it was recorded, for whoever reads one: `read_run`, its `attempts`, and its `totals`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ftcore.spec.run_attempts import Attempt, attempts, lines_by_attempt
from ftcore.spec.run_lines import METRICS_SCHEMA, PHASES, Covered, Line, RunRecord, covered, late_phase, number, phases_of, read_run, summed_phases

__all__ = [
    "METRICS_SCHEMA",
    "PHASES",
    "Attempt",
    "Covered",
    "Line",
    "RunRecord",
    "Totals",
    "attempts",
    "covered",
    "late_phase",
    "lines_by_attempt",
    "number",
    "phases_of",
    "read_run",
    "summed_phases",
    "totals",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """A run over all its attempts. The time between attempts is in none of the numbers."""

    updates: int
    """Updates done."""
    redone_updates: int
    """Updates that were trained and lost, and trained again: in the device hours and the cost, in nothing else."""
    wall_s: float
    """Of all attempts, from the launch to its end: preparing, loading, evaluating and saving included."""
    training_s: float
    """Of the updates kept, without what is between them."""
    device_hours: float
    """Hours that devices were held: ranks x wall time of each attempt."""
    tokens: int
    """Tokens trained on, without padding; over all ranks."""
    supervised_tokens: int
    computed_tokens: int
    """Positions computed, padding included."""
    tokens_per_s: float | None
    """Of the training time, over all ranks; None before the first update."""
    supervised_tokens_per_s: float | None
    padding_share: float | None
    mfu: float | None
    """Mean, weighted by device time; None where any update has none."""
    energy_joules: float | None
    """Of the updates kept and what was between them; None where any update has none."""
    cost: float | None
    """device_hours x hardware.price_per_hour; None without a price."""
    cost_per_million_supervised: float | None
    currency: str


def totals(record: RunRecord) -> Totals:
    """The sums of a run; rates are tokens over training time, attempt by attempt, so that neither a resume nor the time before it changes them."""
    launches, parts = attempts(record), [covered(line) for line in record.updates]
    train_s = sum(part.train_s for part in parts)
    sums = {name: sum(getattr(part, name) for part in parts) for name in ("tokens", "supervised_tokens", "computed_tokens")}
    last = record.updates[-1] if record.updates else {}
    device_hours = sum(each.device_s for each in launches) / 3600
    price, currency = prices(record.resolved)
    cost = None if price is None else price * device_hours
    supervised = int(number(last, "supervised_tokens_seen", sums["supervised_tokens"]))
    return Totals(
        updates=int(last.get("update", 0)),
        redone_updates=sum(each.redone_updates for each in launches),
        wall_s=sum(each.wall_s for each in launches),
        training_s=train_s,
        device_hours=device_hours,
        tokens=int(number(last, "tokens_seen", sums["tokens"])),
        supervised_tokens=supervised,
        computed_tokens=sums["computed_tokens"],
        tokens_per_s=sums["tokens"] / train_s if train_s > 0 else None,
        supervised_tokens_per_s=sums["supervised_tokens"] / train_s if train_s > 0 else None,
        padding_share=1 - sums["tokens"] / sums["computed_tokens"] if sums["computed_tokens"] else None,
        mfu=_mfu(record.updates, parts),
        energy_joules=_sum_if_all(record.updates, "energy_joules"),
        cost=cost,
        cost_per_million_supervised=cost / (supervised / 1e6) if cost is not None and supervised else None,
        currency=currency,
    )


def prices(resolved: Mapping[str, Any]) -> tuple[float | None, str]:
    """(price of a device for an hour or None, currency) of a resolved spec as plain data."""
    hardware = (resolved.get("spec") or {}).get("hardware") or {}
    price = hardware.get("price_per_hour")
    return (float(price) if isinstance(price, int | float) else None), str(hardware.get("currency") or "USD")


def _mfu(lines: list[Line], parts: list[Covered]) -> float | None:
    """Each line's share of the peak over its own device time."""
    if not lines or any(not isinstance(line.get("mfu"), int | float) for line in lines):
        return None
    weights = [number(line, "world_size", 1) * part.train_s for line, part in zip(lines, parts, strict=True)]
    total = sum(weights)
    return sum(float(line["mfu"]) * weight for line, weight in zip(lines, weights, strict=True)) / total if total > 0 else None


def _sum_if_all(lines: list[Line], key: str) -> float | None:
    if not lines or any(not isinstance(line.get(key), int | float) for line in lines):
        return None
    return sum(float(line[key]) for line in lines)
