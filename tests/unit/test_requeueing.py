"""What a job does when its launch has ended: a table of endings, and how Slurm's words are read."""

from __future__ import annotations

import pytest

from ftcore.spec.cluster import SchedulerSection
from launcher.submission.requeueing import MOST_DELAY_S, Cause, Decision, Ending, Then, decide, find_cause
from launcher.submission.slurm import JobState

SCHEDULER = SchedulerSection(max_requeues=3, requeue_backoff=30.0)


def ending(status: int, *, is_infrastructure: bool = False, cause: Cause = Cause.NOTHING, restarts: int = 0, noted: bool = False, jobs_left: int = 0) -> Ending:
    return Ending(status=status, is_infrastructure=is_infrastructure, cause=cause, restarts=restarts, noted=noted, jobs_left=jobs_left)


# H08: a mistake never goes back into the queue, whatever Slurm does meanwhile.
@pytest.mark.parametrize("status", [1, 2, 3, 4, 5, 6, 7, 128 + 9, 128 + 2])
def test_a_permanent_error_never_requeues(status: int) -> None:
    decision = decide(ending(status), SCHEDULER)
    assert decision.then is Then.END_CHAIN and str(status) in decision.reason


@pytest.mark.parametrize(
    ("given", "then"),
    [
        (ending(0), Then.END_CHAIN),
        (ending(0, cause=Cause.TIME_LIMIT), Then.END_CHAIN),
        (ending(75), Then.REQUEUE),
        (ending(3, is_infrastructure=True), Then.REQUEUE),
        (ending(128 + 9, is_infrastructure=True), Then.REQUEUE),
        # H08: also when the limit came before the save was done, and no status tells of it.
        (ending(128 + 15, cause=Cause.TIME_LIMIT), Then.REQUEUE),
        (ending(75, cause=Cause.TIME_LIMIT), Then.REQUEUE),
        # A save that took longer than preempt_grace: the checkpoint before it is good.
        (ending(128 + 12), Then.REQUEUE),
        # Slurm has put it back: a second request would count twice.
        (ending(75, cause=Cause.REQUEUED), Then.LEAVE),
        (ending(75, noted=True), Then.LEAVE),
        (ending(75, cause=Cause.CANCELLED), Then.END_CHAIN),
        (ending(75, jobs_left=2), Then.NEXT_JOB),
        (ending(75, restarts=3, jobs_left=1), Then.NEXT_JOB),
        (ending(2, jobs_left=2), Then.END_CHAIN),
        (ending(75, restarts=3), Then.LEAVE),
    ],
)
def test_endings(given: Ending, then: Then) -> None:
    assert decide(given, SCHEDULER).then is then


def test_the_wait_doubles_up_to_the_cap() -> None:
    decisions = [decide(ending(75, restarts=count), SCHEDULER) for count in range(5)]
    assert [decision.delay_s for decision in decisions] == [30.0, 60.0, 120.0, 0.0, 0.0]
    assert [decision.then for decision in decisions] == [Then.REQUEUE] * 3 + [Then.LEAVE] * 2
    assert "max_requeues 3" in decisions[3].reason
    many = decide(ending(75, restarts=900), SchedulerSection(max_requeues=1000))
    assert many == Decision(then=Then.REQUEUE, reason="preempted", delay_s=MOST_DELAY_S)


def test_no_requeues_at_all() -> None:
    assert decide(ending(75), SchedulerSection(max_requeues=0)).then is Then.LEAVE


CANCELLED = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29T22:14:47 ***\n"
LIMIT = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29T22:15:52 DUE TO TIME LIMIT ***\n"
REQUEUED = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29T22:14:05 DUE TO JOB REQUEUE ***\n"
TAKEN = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29T22:14:05 DUE TO PREEMPTION ***\n"


@pytest.mark.parametrize(
    ("now", "log", "cause"),
    [
        (JobState(job="7", state="RUNNING"), "", Cause.NOTHING),
        (JobState(job="7", state="COMPLETING", reason="TimeLimit"), "", Cause.TIME_LIMIT),
        (JobState(job="7", state="COMPLETING"), LIMIT, Cause.TIME_LIMIT),
        # Slurm 22.05 says of a cancelled job that it completes, and takes a requeue of it.
        (JobState(job="7", state="COMPLETING"), CANCELLED, Cause.CANCELLED),
        (JobState(job="7", state="COMPLETING"), "", Cause.CANCELLED),
        (JobState(job="7", state="COMPLETING"), TAKEN, Cause.PREEMPTED),
        (JobState(job="7", state="COMPLETING", restarts=1), TAKEN, Cause.REQUEUED),
        (JobState(job="7", state="PENDING"), "", Cause.REQUEUED),
        (None, "", Cause.NOTHING),
        (None, REQUEUED, Cause.REQUEUED),
        (None, CANCELLED, Cause.CANCELLED),
        (None, CANCELLED.replace("JOB 7", "JOB 8"), Cause.NOTHING),
        # The newest word counts.
        (None, CANCELLED + LIMIT, Cause.TIME_LIMIT),
    ],
)
def test_causes(now: JobState | None, log: str, cause: Cause) -> None:
    assert find_cause(now, log, "7", 0) is cause
