"""In which state a run is. Pure: from the lock, its last launch, and what the scheduler says of its jobs."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from ftcore.spec.errors import INTERRUPT_STATUS_BASE, PREEMPTED
from launcher.failure import describe_status
from launcher.inspect.events import Holder, LastLaunch
from launcher.submission.slurm import JobState

_STOPPED = frozenset(INTERRUPT_STATUS_BASE + each for each in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM))
_BAD_ENDS = {
    "TIMEOUT": "the time limit ended its job",
    "NODE_FAIL": "a node of its job failed",
    "OUT_OF_MEMORY": "its job used more memory than it had asked for",
    "BOOT_FAIL": "a node of its job did not start",
    "DEADLINE": "its job passed its deadline",
    "FAILED": "its job failed",
}


class State(StrEnum):
    """What `ftlaunch status` calls it."""

    NEW = "new"
    QUEUED = "queued"
    RUNNING = "running"
    PREEMPTED = "preempted"
    REQUEUED = "requeued"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The state, and why, for people."""

    state: State
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of a run."""

    held: Holder | None
    launch: LastLaunch | None
    attempts: int
    """Launches so far, also of an ftlaunch that wrote no events about them."""
    is_trained: bool
    """The last update is done."""
    jobs: tuple[JobState, ...]
    """Those of its submission in order; empty without one, or when the scheduler does not answer."""
    was_cancelled: bool
    """By `ftlaunch cancel`, after the newest launch had begun."""


def judge(seen: Seen) -> Verdict:
    """The state of a run."""
    launch, jobs = seen.launch, seen.jobs
    if seen.held is not None:
        return Verdict(state=State.RUNNING)
    if (launch is not None and launch.status == 0) or (launch is None and seen.is_trained):
        return Verdict(state=State.FINISHED)
    running = next((job for job in jobs if job.runs), None)
    if running is not None:
        return Verdict(state=State.RUNNING, why=f"job {running.job} is {running.state.lower()}, its launch is starting, or has just ended")
    waiting = next((job for job in jobs if job.waits), None)
    if waiting is not None:
        return _waiting(waiting, jobs, launch)
    # A job that fails takes the rest of its chain out of the queue.
    has_failed = any(job.state in _BAD_ENDS for job in jobs) or (launch is not None and launch.status not in (None, PREEMPTED))
    if seen.was_cancelled or (any(job.state == "CANCELLED" for job in jobs) and not has_failed):
        return Verdict(state=State.STOPPED, why="cancelled")
    return _ended(seen)


def _waiting(waiting: JobState, jobs: tuple[JobState, ...], launch: LastLaunch | None) -> Verdict:
    why = f"job {waiting.job} waits" + (f": {waiting.reason}" if waiting.reason else "")
    is_first = waiting == jobs[0] and not waiting.restarts
    return Verdict(state=State.QUEUED if launch is None and is_first else State.REQUEUED, why=why)


def _ended(seen: Seen) -> Verdict:
    launch = seen.launch
    bad = next((_BAD_ENDS[job.state] for job in reversed(seen.jobs) if job.state in _BAD_ENDS), "")
    if launch is None and not seen.attempts:
        return Verdict(state=State.FAILED, why=f"{bad} before the launch began") if bad else Verdict(state=State.NEW, why="no launch has begun")
    if launch is None:
        return Verdict(state=State.FAILED, why=bad or "how it ended is not recorded: it was started by hand, or events.jsonl is damaged")
    if launch.status is None:
        return Verdict(state=State.FAILED, why=bad or "its launcher was killed, or its host went down")
    if launch.status == PREEMPTED:
        return Verdict(state=State.PREEMPTED, why="saved, and can go on")
    state = State.STOPPED if launch.status in _STOPPED and not launch.is_failure else State.FAILED
    return Verdict(state=state, why=launch.reason or describe_status(launch.status))
