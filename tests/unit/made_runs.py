"""Run folders made up line by line, for whoever reads runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ftcore.spec.run_dir import RunDir


def made_run(folder: Path, *, slots: int = 2, price: float | None = None, currency: str = "EUR") -> RunDir:
    """A run folder with a resolved spec and nothing else."""
    run_dir = RunDir(folder)
    folder.mkdir(parents=True)
    hardware = {"price_per_hour": price, "currency": currency}
    run_dir.resolved.write_text(json.dumps({"version": 1, "hosts": [{"name": "a", "slots": slots}], "spec": {"hardware": hardware}}))
    return run_dir


def add_lines(path: Path, *lines: dict[str, Any]) -> None:
    """Adds JSON lines to a file of the folder."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def line(update: int, *, attempt: int, time: float, world_size: int = 2, seconds: float = 2.0, **other: Any) -> dict[str, Any]:
    """A line of metrics.jsonl: 100 tokens of 125 computed ones, 40 of them supervised, in `seconds` seconds and half a second around them."""
    counts = {"tokens": 100, "supervised_tokens": 40, "computed_tokens": 125}
    window = {f"window_{name}": count for name, count in counts.items()} | {"window_train_seconds": seconds}
    wall = {"phase_updates": 1, "phase_seconds": seconds + 0.5, "seconds": seconds, "time": time}
    return {"schema": 1, "attempt": attempt, "update": update, "world_size": world_size, **wall, **counts, **window, **other}


def old_line(update: int, *, seconds: float = 2.0) -> dict[str, Any]:
    """A line as runs wrote them before they had a schema."""
    return {"update": update, "total_updates": 9, "tokens": 100, "supervised_tokens": 40, "computed_tokens": 125, "seconds": seconds}
