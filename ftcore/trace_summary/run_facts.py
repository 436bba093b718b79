"""What a run's folder says beside its traces: the spec, the tokens of each rank, and how long updates took that were not profiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ftcore.spec.errors import FtError
from ftcore.spec.resolved import ResolvedSpec, load_resolved
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_lines import Line, by_update, json_lines

WARM_UP = 2
"""Updates at the beginning of a run that say nothing of its speed."""
NEAREST = 20
"""Updates without the profiler that its cost is told by: the nearest ones."""


@dataclass(slots=True)
class RunFacts:
    """Of the run that the traces are of; nothing is known where they lie in a folder of their own."""

    name: str = ""
    resolved: ResolvedSpec | None = None
    metrics: list[Line] = field(default_factory=list)
    by_rank: dict[int, list[Line]] = field(default_factory=dict)

    @property
    def world_size(self) -> int | None:
        return None if self.resolved is None else self.resolved.world_size

    def tokens(self, updates: Sequence[int]) -> dict[int, int]:
        """Tokens that each rank computed in these updates; ranks without a line for each of them are missing."""
        wanted, found = set(updates), {}
        for rank, lines in self.by_rank.items():
            counts = {line["update"]: line.get("computed_tokens", line.get("tokens")) for line in lines if line["update"] in wanted}
            known = [count for count in counts.values() if isinstance(count, int)]
            if len(known) == len(wanted):
                found[rank] = sum(known)
        return found if wanted else {}

    def unprofiled_update_s(self, profiled: Sequence[int]) -> float | None:
        """Median seconds of the updates nearest to the profiled ones, warm-up left out; None without any."""
        if not profiled:
            return None
        # The update after the last one pays for writing the trace.
        left_out = {*profiled, max(profiled) + 1}
        seconds = {line["update"]: line["seconds"] for line in self.metrics if isinstance(line.get("seconds"), float)}
        others = sorted((update for update in seconds if update not in left_out and update > WARM_UP), key=lambda update: abs(update - profiled[0]))
        return median(seconds[update] for update in others[:NEAREST]) if others else None


def read_run_facts(folder: Path) -> RunFacts:
    """Of the run in a folder; empty for a folder that is none, and without what can't be read."""
    run_dir = RunDir(folder)
    if not run_dir.resolved.is_file():
        return RunFacts()
    facts = RunFacts(name=folder.name, metrics=by_update(json_lines(run_dir.metrics)))
    try:
        facts.resolved = load_resolved(run_dir.resolved)
    except FtError:
        return facts
    facts.by_rank = {rank: lines for rank in range(facts.resolved.world_size) if (lines := by_update(json_lines(run_dir.rank_metrics(rank))))}
    return facts
