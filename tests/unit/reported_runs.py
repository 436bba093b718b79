"""Runs made up for the pages that report them: as long, as wide and as broken as a test wants."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ftcore.report.make import read_views
from ftcore.report.run_view import RunView
from ftcore.spec.report_request import ReportedRun
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_record import PHASES
from tests.unit.made_runs import add_lines

START = 1_790_000_000.0
HOSTILE = "<script>alert('x')</script>\"&<img src=http://evil.example/x onerror=alert(1)>$\\frac{a}{b}$\u202e\x1b[31m#fe0001"


def long_run(
    folder: Path, *, updates: int = 60, ranks: int = 2, evaluate: int = 20, attempts: int = 1, seconds: float = 1.5, hidden: dict[str, Any] | None = None
) -> RunDir:
    """A run of so many updates on so many ranks, in attempts of equal length with hours between them; `hidden` goes into every line of metrics.jsonl."""
    run_dir = RunDir(folder)
    folder.mkdir(parents=True)
    run_dir.resolved.write_text(json.dumps(resolved(ranks)), encoding="utf-8")
    run_dir.memory_json.write_text(json.dumps(memory()), encoding="utf-8")
    run_dir.plan_json.write_text(json.dumps({"rows": 900, "samples": 890, "dropped": {"overlong": 10}, "tokens": 90_000, "supervised_tokens": 40_000}))
    rows = "".join(f"{update},0,8,{800 + update % 7 * 20},1,2,{update % 5 * 10},0.8{update % 10},1.0,0.0\n" for update in range(1, min(updates, 500) + 1))
    run_dir.plan_updates.write_text("update,epoch,samples,tokens,micro_steps,packs,padding_tokens,fill,cost_imbalance,waiting\n" + rows)
    lines = list(metric_lines(updates, ranks, attempts, seconds, hidden or {}))
    add_lines(run_dir.metrics, *lines)
    for rank in range(ranks):
        add_lines(run_dir.rank_metrics(rank), *(rank_line(line, rank) for line in lines))
    add_lines(run_dir.events, *events(updates, ranks, evaluate, attempts, seconds))
    return run_dir


def resolved(ranks: int) -> dict[str, Any]:
    """A resolved spec as plain data."""
    spec = {
        "model": {"model_name_or_path": "HuggingFaceTB/SmolLM2-135M"},
        "method": {"type": "lora", "r": 16},
        "optimizer": {"learning_rate": 1e-3, "max_grad_norm": 1.0},
        "zero": {"stage": 2},
        "train": {"precision": "bf16"},
        "data": {"max_length": 512},
        "hardware": {"price_per_hour": 2.0, "currency": "EUR"},
    }
    sources = {"model.model_name_or_path": "spec.yaml:2", "zero.stage": "--zero", "optimizer.learning_rate": "default"}
    return {"version": 1, "spec": spec, "hosts": [{"name": "node1", "slots": ranks}], "sources": sources}


def memory() -> dict[str, Any]:
    """memory.json with two items."""
    item = {"place": "device", "scope": "rank", "phases": [], "formula": "4 bytes each", "source": "a paper"}
    items = [{"name": "weights", "group": "weights", "bytes": 2 << 30, **item}, {"name": "kept", "group": "activations", "bytes": 3 << 30, **item}]
    capacity = {"accelerator": "h100-80", "device_bytes": 8 << 30}
    return {"trained": 5_000_000, "parameters": 135_000_000, "memory": {"items": items, "peak_phase": "backward"}, "capacity": capacity}


def metric_lines(updates: int, ranks: int, attempts: int, seconds: float, hidden: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    part = math.ceil(updates / attempts)
    for update in range(1, updates + 1):
        attempt = (update - 1) // part + 1
        wave = math.sin(update * 12.9898) * 0.1
        counts = {"tokens": 800, "supervised_tokens": 300, "computed_tokens": 900}
        yield {
            "schema": 1,
            "attempt": attempt,
            "time": START + 10_000 * (attempt - 1) + 20 + seconds * update,
            "update": update,
            "total_updates": updates,
            "world_size": ranks,
            "loss": 1.2 + 3 * math.exp(-3 * update / updates) + wave,
            "grad_norm": 0.8 + abs(wave) * 4,
            "learning_rate": 1e-3 * (1 - update / (updates + 1)),
            **counts,
            **{f"window_{name}": count for name, count in counts.items()},
            "seconds": seconds * 0.9,
            "window_train_seconds": seconds * 0.9,
            "tokens_per_s": 800 / seconds * (1 + wave),
            "supervised_tokens_per_s": 300 / seconds * (1 + wave),
            "peak_memory_bytes": 6 << 30,
            "allocated_bytes": 5 << 30,
            "reserved_bytes": 7 << 30,
            "mfu": 0.4 + wave,
            "phase_updates": 1,
            "phase_seconds": seconds,
            "phases": phases(seconds, wave),
            **hidden,
        }


def phases(seconds: float, wave: float) -> dict[str, float]:
    """Seconds of each phase, `seconds` together."""
    shares = dict(zip(PHASES, (0.02, 0.3, 0.45 - wave / 2, 0.08, 0.05 + wave / 2, 0.03, 0.02, 0.03, 0.02), strict=True))
    return {name: share * seconds for name, share in shares.items()}


def rank_line(line: dict[str, Any], rank: int) -> dict[str, Any]:
    """A rank's own line of an update; others wait for rank 1."""
    kept = {name: line[name] for name in ("schema", "attempt", "time", "update", "phase_updates", "phase_seconds", "phases", "peak_memory_bytes")}
    late = {"caused_idle_seconds": 0.3 if rank == 1 else 0.0, "late_phase": "forward" if rank == 1 else ""}
    return {**kept, "rank": rank, "host": "node1", "tokens": 400, "computed_tokens": 450, "cost": 500.0, **late}


def events(updates: int, ranks: int, evaluate: int, attempts: int, seconds: float) -> Iterator[dict[str, Any]]:
    """The lines of events.jsonl."""
    part = math.ceil(updates / attempts)
    for attempt in range(1, attempts + 1):
        began, first, last = START + 10_000 * (attempt - 1), part * (attempt - 1), min(updates, part * attempt)
        own = {"attempt": attempt}
        yield {"event": "launch_started", "time": began, **own, "hosts": ["node1"], "world_size": ranks}
        yield {"event": "loop_start", "time": began + 20, **own, "update": first, "world_size": ranks}
        for update in range(first, last + 1, evaluate):
            loss = 1.3 + 3 * math.exp(-3 * update / updates)
            yield {"event": "evaluation", "time": began + 20 + seconds * update, **own, "update": update, "set": "eval", "loss": loss, "tokens": 900}
            yield {"event": "checkpoint", "time": began + 21 + seconds * update, **own, "update": update, "path": f"update_{update:08d}"}
        status = 0 if attempt == attempts else 137
        yield {"event": "launch_ended", "time": began + 40 + seconds * last, **own, "status": status, "reason": "done" if status == 0 else "killed"}


def viewed(*folders: Path, state: str = "") -> list[RunView]:
    """The runs as their page sees them."""
    return read_views([ReportedRun(path=str(folder), shown=str(folder), state=state) for folder in folders])
