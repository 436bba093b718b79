"""summary.json: where the time of the profiled updates went, over all ranks, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from ftcore.spec.errors import CheckpointError
from ftcore.trace_summary.advice import Facts, advice
from ftcore.trace_summary.collectives import by_kind
from ftcore.trace_summary.events import TraceFile
from ftcore.trace_summary.operators import added, top
from ftcore.trace_summary.parts import PARTS, PHASES
from ftcore.trace_summary.ranks import RankTime, imbalance, waiting_of
from ftcore.trace_summary.recorded import record
from ftcore.trace_summary.run_facts import RunFacts

SCHEMA = 1
"""Raised when a key changes its meaning or goes away."""
NOTHING_FIX = "profile a run: ftlaunch profile SPEC, or set profiling.updates in a spec"


def traces_in(folder: Path) -> list[Path]:
    """Its traces by name: *.json and *.json.gz, but for the summary itself and what is still being written."""
    found = [path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")) and not path.name.startswith((".", "summary."))]
    return sorted(path for path in found if path.is_file())


def read_ranks(paths: Sequence[Path], told: Callable[[int, int], None]) -> tuple[list[RankTime], list[str]]:
    """(each rank's time in rank order, what was wrong with the files). `told` is called with the files done and all of them.

    Raises CheckpointError when no file holds anything of a rank.
    """
    ranks: dict[int, RankTime] = {}
    problems: list[str] = []
    for number, path in enumerate(paths):
        told(number, len(paths))
        file = TraceFile(path)
        recorded = record(file)
        problems += file.problems
        if len(recorded.operators) or recorded.on_device:
            rank = ranks.setdefault(file.rank, RankTime(file.rank, file.host))
            rank.add(recorded, path.name)
        elif not file.problems:
            problems.append(f"{path.name} holds no operator and no kernel")
    if not ranks:
        what = "; ".join(problems[:4]) or "it holds no *.json.gz"
        raise CheckpointError(f"nothing was profiled: {what}", where=str(paths[0].parent) if paths else "", fix=NOTHING_FIX)
    return [ranks[rank] for rank in sorted(ranks)], problems


def summarise(ranks: Sequence[RankTime], problems: Sequence[str], run: RunFacts) -> dict[str, Any]:
    """The content of summary.json. Seconds are of all the profiled updates together, of one rank; at the top as a mean over the ranks."""
    # The last to come may be one that was not profiled.
    waiting = waiting_of(ranks) if run.world_size in (None, len(ranks)) else None
    on_device = any(each.on_device for each in ranks)
    updates = sorted({number for each in ranks for number in each.updates})
    wall = mean(each.wall_s for each in ranks)
    parts = {part: mean(each.parts[part] for each in ranks) for part in PARTS}
    uneven = imbalance(ranks, run.tokens(updates))
    counted = [len(each.updates) for each in ranks if each.updates]
    update_s = wall / mean(counted) if counted else None
    facts = _advice_facts(ranks, waiting, run, parts, "" if uneven is None else uneven["cause"])
    without = run.unprofiled_update_s(updates)
    return {
        "schema": SCHEMA,
        "device": "accelerator" if on_device else "cpu",
        "run": run.name,
        "world_size": run.world_size,
        "updates": updates,
        "wall_s": wall,
        "update_s": update_s,
        "unprofiled_update_s": without,
        "profiler_slowdown": update_s / without - 1 if update_s and without else None,
        "parts": parts,
        "shares": {part: seconds / wall if wall else 0.0 for part, seconds in parts.items()},
        "host_bound_share": parts["host_bound"] / wall if wall else 0.0,
        "host_bound_means": _host_bound_means(on_device=on_device),
        "communication": _communication(ranks, waiting),
        "phases": _mean_phases(ranks),
        "ranks": [each.to_record(None if waiting is None else waiting[each.rank]) for each in ranks],
        "imbalance": uneven,
        "operators": top(added([each.operators for each in ranks]), on_device=on_device),
        "kernels": top(added([each.kernels for each in ranks]), on_device=True) if on_device else [],
        "collectives": by_kind([each for rank in ranks for each in rank.collectives]),
        "advice": advice(facts),
        "problems": list(problems),
    }


def _host_bound_means(*, on_device: bool) -> str:
    if on_device:
        return "the accelerator is idle because the host has not launched its next kernel yet"
    where = "the training thread is in forward, backward or the optimizer and runs no operator"
    return f"no device waits for launches on a CPU: {where} (Python, DeepSpeed's bookkeeping)"


def _mean_phases(ranks: Sequence[RankTime]) -> dict[str, dict[str, float]]:
    told = [each.phases() for each in ranks]
    keys = ("wall_s", *PARTS)
    return {phase: {key: mean(each.get(phase, {}).get(key, 0.0) for each in told) for key in keys} for phase in PHASES if any(phase in each for each in told)}


def _communication(ranks: Sequence[RankTime], waiting: Mapping[int, Any] | None) -> dict[str, Any]:
    whole, hidden = mean(each.communication_s for each in ranks), mean(each.overlapped_s for each in ranks)
    return {
        "total_s": whole,
        "overlapped_s": hidden,
        "exposed_s": mean(each.parts["communication"] for each in ranks),
        "overlap_share": hidden / whole if whole else None,
        "waiting_s": None if waiting is None else mean(each.waiting_s for each in waiting.values()),
        "transfer_s": None if waiting is None else mean(each.transfer_s for each in waiting.values()),
    }


def _advice_facts(ranks: Sequence[RankTime], waiting: Mapping[int, Any] | None, run: RunFacts, parts: Mapping[str, float], cause: str) -> Facts:
    wall = sum(parts.values()) or 1.0
    told = _communication(ranks, waiting)
    both = (told["waiting_s"] or 0.0) + (told["transfer_s"] or 0.0)
    updates = sum(len(each.updates) for each in ranks) or len(ranks)
    return Facts(
        shares={part: seconds / wall for part, seconds in parts.items()},
        spec=None if run.resolved is None else run.resolved.spec,
        ranks=run.world_size or 0,
        waiting_share=None if waiting is None or not both else told["waiting_s"] / both,
        overlap_share=told["overlap_share"],
        cause=cause,
        on_device=any(each.on_device for each in ranks),
        synchronisations_an_update=sum(each.synchronised[0] for each in ranks) / updates,
    )
