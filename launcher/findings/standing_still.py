"""A run that is going and has logged nothing for long: it may hang, and the watchdog has not ended it yet."""

from __future__ import annotations

import time

from ftcore.spec.run_record import covered, number
from launcher.findings.finding import WRONG, Evidence, Finding, Knob
from launcher.findings.seen import Seen, middle
from launcher.progress import clock_time

LONGEST = 20.0
"""Times the usual time between two lines from which on the wait for the next one is told of: an evaluation or a save takes its time too."""
LEAST_S = 60.0


def standing_still(seen: Seen, now: float | None = None) -> Finding | None:
    """The finding, at `now` (seconds since the epoch; None: this moment); None for a run that has ended, or goes on as usual."""
    if not seen.is_running or not seen.record.updates:
        return None
    now = time.time() if now is None else now
    last = max((number(event, "time") for event in (*seen.record.events, seen.record.updates[-1])), default=0.0)
    usual = middle(covered(line).wall_s for line in seen.steady() or seen.record.updates)
    quiet = now - last
    if last <= 0 or quiet < max(LEAST_S, LONGEST * usual):
        return None
    limit = seen.resolved.spec.cluster.stall_timeout if seen.resolved is not None else 0.0
    ends = f"the watchdog ends it after {clock_time(limit)} without progress, and keeps the stacks of all ranks" if limit else "no watchdog ends it"
    return Finding(
        kind="standing_still",
        severity=WRONG,
        what=f"nothing was logged for {clock_time(quiet)}, after update {seen.done}; usually it takes {usual:.3g} s",
        update=None if seen.is_trained else seen.done + 1,
        time=last,
        weight=3.0,
        details=(f"{ends} (cluster.stall_timeout)",),
        causes=("a long evaluation, save or compilation, or a hang: `ftlaunch logs RUN -f` shows what the ranks say",),
        evidence=(Evidence(what=f"the last line is of update {seen.done}", file="metrics.jsonl"),),
        knobs=(Knob(options="--set cluster.stall_timeout=300", gives="a hang is ended, and its stacks are taken, after 5 minutes", may_resume=True),)
        if limit > 300
        else (),
    )
