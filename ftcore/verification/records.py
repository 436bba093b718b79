"""What a split wrote down of its updates, read back from its run folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRecord:
    """One update as a split trained it."""

    update: int
    """From 1."""
    loss: float | None
    """None where the update held nothing to learn from."""
    grad_norm: float | None
    stepped: bool
    """Whether the optimizer took its step."""
    samples: tuple[int, ...]
    """Ids over all ranks, ascending."""


def read_records(run_dir: RunDir, updates: int) -> list[UpdateRecord]:
    """The records of updates 1 to `updates`. Raises CheckpointError when the split has not written down all of them."""
    samples: dict[int, list[int]] = {}
    for path in sorted(run_dir.rank_metrics(0).parent.glob("rank_*.jsonl")):
        for line in _lines(path):
            samples.setdefault(line["update"], []).extend(sample for part in line.get("samples", ()) for sample in part)
    records = [
        UpdateRecord(
            update=line["update"],
            loss=_number(line["loss"]),
            grad_norm=_number(line["grad_norm"]),
            stepped=bool(line["stepped"]),
            samples=tuple(sorted(samples.get(line["update"], ()))),
        )
        for line in _lines(run_dir.metrics)
    ]
    if [record.update for record in records] != list(range(1, updates + 1)):
        found = ", ".join(str(record.update) for record in records) or "none"
        fix = "start the check again: ftlaunch verify-loss"
        raise CheckpointError(f"updates 1 to {updates} were to be trained, written down are {found}", where=str(run_dir.metrics), fix=fix)
    return records


def _number(value: Any) -> float | None:
    """A value of metrics.jsonl, where nan and infinities are text."""
    return None if value is None else float(value)


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"can't read what a split wrote down: {error}", where=str(path), fix="start the check again: ftlaunch verify-loss") from error
