"""Points, results and run folders of made-up scaling tests."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.run_dir import RunDir
from ftcore.spec.scale_result import MEASURED, ScalePoint, ScaleResult
from launcher.scaling.machines import Machines
from launcher.scaling.request import STRONG, ScaleRequest
from tests.unit.planned_runs import run


def point(ranks: int, seconds: float = 1.0, *, stage: int = 2, tokens: float = 1000.0, **more: Any) -> ScalePoint:
    """A measured point; its tokens/s follow."""
    filled = {
        "name": f"w{ranks}-zero{stage}",
        "hosts": {"localhost": ranks},
        "state": MEASURED,
        "update_seconds": seconds,
        "window_seconds": (seconds,),
        "tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "supervised_tokens_per_s": 0.4 * tokens / seconds,
        "phases": {"forward": seconds / 3, "backward": seconds * 2 / 3},
        "losses": (2.0, 1.5),
    }
    return ScalePoint(ranks=ranks, stage=stage, **{**filled, **more})


def result(*points: ScalePoint, mode: str = STRONG) -> ScaleResult:
    """A result of such points."""
    return ScaleResult(spec="spec.yaml", model="owner/model", mode=mode, precision="fp32", warm_up=2, windows=3, updates=9, points=points)


def machines(slots: int = 2, cores: int = 2, *, hosts: int = 1, on_accelerators: bool = False, is_here: bool = True) -> Machines:
    """Hosts of one size."""
    found = tuple(Host(name="localhost" if is_here else f"w{number}", slots=slots) for number in range(hosts))
    return Machines(hosts=found, cores={host.name: cores for host in found}, on_accelerators=on_accelerators, is_here=is_here)


def request(resolved: ResolvedSpec | None = None, **more: Any) -> ScaleRequest:
    """What a test of a made-up run asks for."""
    filled = {"mode": STRONG, "ranks": (1, 2), "stages": (2,), "warm_up": 2, "windows": 3, "window_updates": 3, "tolerance": 1e-5, "spec_name": "spec.yaml"}
    return ScaleRequest(**{**filled, "spec_text": "", "resolved": resolved or here(), **more})


def here(**more: Any) -> ResolvedSpec:
    """A made-up run on this machine."""
    resolved = run(ranks=2, **more)
    cluster = dataclasses.replace(resolved.spec.cluster, slots=2, hosts="")
    return dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, cluster=cluster), hosts=(Host(name="localhost", slots=2),))


def write_run(folder: Path, seconds: list[float], tokens: list[int], *, ranks: int = 2, with_phases: bool = True, loss: Any = 2.0) -> RunDir:
    """The folder of a run with so many updates; rank 1 is late by a tenth of each, in its forward pass."""
    run_dir = RunDir(folder)
    (folder / "metrics").mkdir(parents=True)
    run_dir.resolved.write_text("{}")
    lines = [
        {"update": number, "seconds": wall, "tokens": held, "supervised_tokens": held // 4, "loss": loss}
        for number, (wall, held) in enumerate(zip(seconds, tokens, strict=True), start=1)
    ]
    run_dir.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"update": 99, "sec')
    for rank in range(ranks):
        mine = [_rank_line(rank, number, wall, held, with_phases) for number, (wall, held) in enumerate(zip(seconds, tokens, strict=True), start=1)]
        run_dir.rank_metrics(rank).write_text("".join(json.dumps(line) + "\n" for line in mine))
    return run_dir


def _rank_line(rank: int, number: int, wall: float, tokens: int, with_phases: bool) -> dict[str, Any]:
    line = {"update": number, "tokens": tokens // 2, "computed_tokens": tokens // 2, "micro_steps": 2, "peak_memory_bytes": 100 * number + rank}
    line |= {"forward": 0.3 * wall, "backward": 0.5 * wall, "step": 0.1 * wall, "data_wait_seconds": 0.05 * wall}
    if with_phases:
        busy = {"forward": 0.4 * wall if rank else 0.3 * wall, "backward": 0.5 * wall, "optimizer": 0.1 * wall}
        idle = {"idle": 0.0 if rank else 0.1 * wall}
        late = {"caused_idle_seconds": 0.1 * wall, "late_phase": "forward"} if rank else {"caused_idle_seconds": 0.0, "late_phase": ""}
        line |= {"phases": busy | idle, "phase_seconds": wall, "phase_updates": 1, "host": "vm", "held_up_seconds": 0.25 if rank else 0.0, **late}
    return line
