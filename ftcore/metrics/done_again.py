"""Updates that were trained and are lost: a resume trains them again, and what an earlier attempt wrote of them is cut away."""

from __future__ import annotations

from collections import defaultdict

from ftcore.metrics.writer import lines_to_cut, record_event
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_lines import Line, by_update, covered, number


def tell_done_again(run_dir: RunDir, next_update: int) -> None:
    """Writes an event `done_again` for each attempt whose updates after `next_update` stand in metrics.jsonl; before those lines are cut."""
    lost: dict[int, list[Line]] = defaultdict(list)
    for line in by_update(lines_to_cut(run_dir.metrics, next_update)):
        if line["update"] > next_update:
            lost[int(number(line, "attempt", 1))].append(line)
    first = next_update
    for which, lines in sorted(lost.items()):
        last, seconds = int(lines[-1]["update"]), sum(covered(line).wall_s for line in lines)
        world_size = int(number(lines[-1], "world_size"))
        record_event(run_dir, "done_again", update=next_update, trained_by=which, updates=last - first, seconds=seconds, world_size=world_size)
        first = last
