"""Folders of runs as ranks and launches leave them, written line by line, for tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.run_record import PHASES
from ftcore.spec.sections import BatchSection, DataSection, ModelSection, Spec, TrainingSet, TrainSection, ZeroSection
from tests.ranks.specs import with_section

GIB = 2**30
BUSY = {"forward": 0.3, "backward": 0.6, "optimizer": 0.05, "other": 0.05}
"""Shares of a run in which nothing is waited for."""
Line = dict[str, Any]


class RecordedRun:
    """Grows by `event` and `trained`; `write` makes the folder."""

    def __init__(self, folder: Path, *, ranks: int = 2, budget: int = 4096, stage: int = 1, host: str = "localhost") -> None:
        self.folder, self.ranks = folder, ranks
        self.spec = Spec(
            model=ModelSection(model_name_or_path="builtin:tiny-llama", dtype="float32"),
            data=DataSection(train=TrainingSet(path="/nowhere/rows.jsonl"), max_length=1024),
            batch=BatchSection(global_batch_size=16, micro_batch_tokens=budget),
            train=TrainSection(max_steps=100, precision="fp32"),
            zero=ZeroSection(stage=stage, coalesce_grad_reduction=False),
        )
        self.hosts: tuple[Host, ...] = (Host(name=host, slots=ranks),)
        self.events: list[Line] = []
        self.updates: list[Line] = []
        self.rank_lines: dict[int, list[Line]] = {rank: [] for rank in range(ranks)}
        self.files: dict[str, str] = {}
        self.memory: Line = {
            "capacity": {"accelerator": "cpu", "device_bytes": 4 * GIB},
            "forecast": {"update_s": 1.0, "communication_s": 0.05, "compute_s": 0.9},
        }
        self.event("launch_started", hosts=[host], env_file="", world_size=ranks)

    def set(self, section: str, **values: Any) -> None:
        """Other values of the spec."""
        self.spec = with_section(self.spec, section, **values)

    def event(self, name: str, attempt: int = 1, **fields: Any) -> None:
        """One line of events.jsonl."""
        self.events.append({"event": name, "time": 1_700_000_000.0 + len(self.events), "attempt": attempt, **fields})

    def ended(self, status: int, reason: str, attempt: int = 1) -> None:
        """The end of the launch."""
        self.event("launch_ended", attempt, status=status, reason=reason)

    def trained(
        self,
        updates: int,
        *,
        shares: Mapping[str, float] = BUSY,
        seconds: float = 1.0,
        of_rank: Sequence[Mapping[str, Any]] = (),
        peak: int = GIB,
        attempt: int = 1,
        **fields: Any,
    ) -> None:
        """So many more updates, each of `seconds` that are spent as `shares` say; `of_rank` adds fields to the lines of each rank."""
        phases = {name: shares.get(name, 0.0) * seconds for name in PHASES}
        for _ in range(updates):
            update = len(self.updates) + 1
            timed = {"schema": 1, "attempt": attempt, "time": 1_700_000_000.0 + update * seconds, "phase_updates": 1, "phase_seconds": seconds}
            counts = {"tokens": 4000, "computed_tokens": 4000, "micro_steps": 1, "peak_memory_bytes": peak, "phases": phases}
            line = {"update": update, "total_updates": 100, "loss": 2.0, "grad_norm": 1.0, "learning_rate": 1e-5, "samples": 16, "supervised_tokens": 2000}
            self.updates.append({**line, **timed, **counts, "seconds": seconds, "world_size": self.ranks, **fields})
            for rank, lines in self.rank_lines.items():
                own = of_rank[rank] if of_rank else {}
                lines.append({"update": update, **timed, **counts, "host": "localhost", "tokens": 2000, "computed_tokens": 2000, **own})

    def error(self, rank: int | None, what: str, *, where: str = "", kind: str = "TrainingError", status: int = 6, **fields: Any) -> None:
        """What a process said of its own end, as an event and, of a rank, as its file."""
        problems = [{"what": what, "where": where, "fix": fields.pop("fix", ""), "file": "", "line": None}]
        error = {"kind": kind, "problems": problems, "exit_status": status, "rank": rank, "host": "localhost", "lost_peer": False, "traceback": "", **fields}
        self.event("error", **error)
        if rank is not None:
            self.files[f"logs/attempt_1/rank_{rank}.error.json"] = json.dumps({**error, "time": self.events[-1]["time"]})

    def write(self) -> Path:
        """The folder, with everything so far."""
        resolved = ResolvedSpec(spec=self.spec, hosts=self.hosts, sources={}, cache_dir=str(self.folder / "cache"))
        texts = {
            "resolved.json": resolved.to_json(),
            "events.jsonl": _lines(self.events),
            "metrics.jsonl": _lines(self.updates),
            "memory.json": json.dumps(self.memory),
            "plan.json": json.dumps({"longest": {"tokens": 900}, "dropped": {}}),
            "environment.json": json.dumps({"hosts": [{"name": "localhost", "accelerators": []}]}),
            **{f"metrics/rank_{rank}.jsonl": _lines(lines) for rank, lines in self.rank_lines.items()},
            **self.files,
        }
        for name, text in texts.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return self.folder


def _lines(lines: Sequence[Line]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)
