"""What a job does when its launch has ended: nothing, go back into the queue, leave the run to the next job of its chain, or end the chain. Pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from ftcore.spec.cluster import SchedulerSection
from ftcore.spec.errors import INTERRUPT_STATUS_BASE, PREEMPTED, FtError
from launcher.failure import RunFailedError
from launcher.preflight.finding import UnfitHostsError
from launcher.processes import PREEMPTING
from launcher.submission.slurm import JobState

_ENDED_BY_SLURM = re.compile(r"\*\*\* JOB (?P<job>[0-9]+) ON \S+ CANCELLED AT \S+(?: DUE TO (?P<reason>[A-Za-z ]+?))? \*\*\*")
_LATE = frozenset(INTERRUPT_STATUS_BASE + signum for signum in PREEMPTING)
MOST_DELAY_S = 24 * 3600.0
_OUT_OF_REACH = "preflight, reach"
_FOLLOWS = "preflight, connection"
"""What other hosts say when one is out of reach."""


class Cause(Enum):
    """Why Slurm ends a job, as far as that can be seen from inside of it."""

    NOTHING = "nothing: it does not"
    TIME_LIMIT = "the time limit"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    REQUEUED = "requeued by Slurm"


class Then(Enum):
    """What follows the end of a launch."""

    REQUEUE = "the job goes back into the queue"
    NEXT_JOB = "the next job of the chain goes on"
    LEAVE = "nothing"
    END_CHAIN = "the other jobs of the chain are cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a launch within a job has ended."""

    status: int
    is_infrastructure: bool
    """A machine failed, not what was computed."""
    why: str = ""
    """The failure's first line."""
    cause: Cause
    restarts: int
    """How often this job had been put back into the queue before."""
    noted: bool
    """Whether this very start of the job has already asked for a requeue."""
    jobs_left: int
    """Jobs of the chain behind this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do."""

    then: Then
    reason: str
    """For people, and for the event."""
    delay_s: float = 0.0
    """With REQUEUE: how long the job waits at least."""
    is_bad: bool = True
    """False for a run that is done."""


def decide(ending: Ending, scheduler: SchedulerSection) -> Decision:
    """What follows. Only a preemption and the failure of a machine put a job back, at most max_requeues times, and one start of a job does so once."""
    if ending.status == 0:
        return Decision(then=Then.END_CHAIN, reason="the run is done", is_bad=False)
    if ending.cause is Cause.CANCELLED:
        return Decision(then=Then.END_CHAIN, reason="the job was cancelled")
    if ending.cause is Cause.REQUEUED or ending.noted:
        return Decision(then=Then.LEAVE, reason="it is in the queue again already")
    why = _passing(ending)
    if not why:
        return Decision(then=Then.END_CHAIN, reason=f"exit status {ending.status} would come again")
    if ending.jobs_left:
        return Decision(then=Then.NEXT_JOB, reason=why)
    if ending.restarts >= scheduler.max_requeues:
        return Decision(then=Then.LEAVE, reason=f"{why}, but {_counted(ending.restarts, scheduler)}")
    # A power of a large count would not fit a float.
    delay = min(scheduler.requeue_backoff * 2.0 ** min(ending.restarts, 40), MOST_DELAY_S)
    return Decision(then=Then.REQUEUE, reason=why, delay_s=delay)


def spent(restarts: int, scheduler: SchedulerSection) -> Decision | None:
    """What a start of a job does that Slurm, or somebody by hand, put back more often than it may be; None: it may begin."""
    if restarts <= scheduler.max_requeues:
        return None
    return Decision(then=Then.END_CHAIN, reason=f"{_counted(restarts, scheduler)}: nothing is trained")


def is_machines(failure: FtError | None) -> bool:
    """Whether a launch failed by a machine, so that the same launch may go well later: a lost host, a killed rank, a hang, a host out of reach.

    What else preflight finds is a matter of configuration, and would be found again.
    """
    if isinstance(failure, UnfitHostsError):
        found = {problem.where for problem in failure.problems}
        return _OUT_OF_REACH in found and found <= {_OUT_OF_REACH, _FOLLOWS}
    return isinstance(failure, RunFailedError) and failure.is_infrastructure


def find_cause(now: JobState | None, log: str, job: str, restarts: int) -> Cause:
    """Why a job is ending: `now` is what slurmctld says of it (None: no answer), `log` the end of its log, `restarts` its count when it began.

    A job that Slurm ends without a word of the reason counts as cancelled: a cancelled run must not come back.
    """
    found = [matched["reason"] or "" for matched in _ENDED_BY_SLURM.finditer(log) if matched["job"] == job]
    if now is not None:
        if now.restarts > restarts or now.waits:
            return Cause.REQUEUED
        if now.reason == "TimeLimit" or now.state == "TIMEOUT":
            return Cause.TIME_LIMIT
        if now.state in ("RUNNING", "SUSPENDED"):
            return Cause.NOTHING
    elif not found:
        return Cause.NOTHING
    reason = found[-1].strip().upper() if found else ""
    named = {"TIME LIMIT": Cause.TIME_LIMIT, "PREEMPTION": Cause.PREEMPTED, "NODE FAILURE": Cause.PREEMPTED, "JOB REQUEUE": Cause.REQUEUED}
    return named.get(reason, Cause.CANCELLED)


def _counted(restarts: int, scheduler: SchedulerSection) -> str:
    return f"it was put back {restarts} times already (cluster.scheduler.max_requeues {scheduler.max_requeues})"


def _passing(ending: Ending) -> str:
    """Why another start may go well; empty when it would fail again."""
    if ending.status == PREEMPTED:
        return "the time limit is near" if ending.cause is Cause.TIME_LIMIT else "preempted"
    if ending.status in _LATE:
        return "asked to stop, and ended before it had saved"
    if ending.is_infrastructure:
        return ending.why or "a machine failed"
    return "ended by Slurm before a save" if ending.cause in (Cause.TIME_LIMIT, Cause.PREEMPTED) else ""
