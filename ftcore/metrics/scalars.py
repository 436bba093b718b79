"""The numbers of a line of metrics.jsonl under the names that TensorBoard and W&B show them by; docs/metrics.md lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = {
    "loss": "loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "loss_scale": "loss_scale",
    "epoch": "epoch",
    "tokens_per_s": "throughput/tokens_per_s",
    "supervised_tokens_per_s": "throughput/supervised_tokens_per_s",
    "mfu": "throughput/mfu",
    "padding_share": "throughput/padding_share",
    "tokens_seen": "throughput/tokens_seen",
    "supervised_tokens_seen": "throughput/supervised_tokens_seen",
    "peak_memory_bytes": "memory/peak_bytes",
    "allocated_bytes": "memory/allocated_bytes",
    "reserved_bytes": "memory/reserved_bytes",
    "cost_per_million_supervised_tokens": "throughput/cost_per_million_supervised_tokens",
}
"""Field -> scalar."""
GROUPS = {"losses": "loss", "group_norms": "grad_norm", "layer_grad_norms": "layer_grad_norm"}
"""Field that holds numbers by name -> what goes before each name."""


def update_scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """Of an update; what the line does not have, or has no number for, is left out."""
    updates = line.get("phase_updates") or 1
    seconds = {"throughput/seconds_per_update": _divided(line.get("window_train_seconds"), updates)}
    phases = {f"phases/{name}": _divided(value, updates) for name, value in (line.get("phases") or {}).items()}
    energy = {"throughput/joules_per_update": _divided(line.get("energy_joules"), updates)}
    named = {scalar: line.get(name) for name, scalar in NAMES.items()}
    grouped = {f"{before}/{name}": value for field, before in GROUPS.items() for name, value in (line.get(field) or {}).items()}
    found = {name: _number(value) for name, value in {**named, **grouped, **seconds, **energy, **phases}.items()}
    return {name: value for name, value in found.items() if value is not None}


def evaluation_scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Of one set's evaluation."""
    found = {f"eval/{record['set']}/{name}": _number(record.get(name)) for name in ("loss", "perplexity")}
    return {name: value for name, value in found.items() if value is not None}


def _divided(value: Any, by: float) -> float | None:
    known = _number(value)
    return None if known is None else known / by


def _number(value: Any) -> float | None:
    """A number, also one that JSON has as text (`nan`, `inf`)."""
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
