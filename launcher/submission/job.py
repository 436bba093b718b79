"""One start of a Slurm job: the run goes on on the job's nodes, and when the launch has ended, what follows is done."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ftcore.spec.errors import PREEMPTED, CheckpointError, ClusterError, FtError
from ftcore.spec.run_dir import RunDir, write_atomic
from launcher.attempts import Manner
from launcher.cli import print_error
from launcher.early_warning import EarlyWarningError
from launcher.environment import read_env_file
from launcher.failure import first_line
from launcher.hostfile import render_hostfile
from launcher.inspect.events import ended_well
from launcher.launching import start_again
from launcher.resuming import resolve_again
from launcher.run_change import change_run, kept_path
from launcher.run_folder import find_run, locked, next_attempt, shown
from launcher.slurm_nodes import job_hosts
from launcher.spec_source import Options
from launcher.submission.record import Submission, cancelled_path, job_hosts_path, note_requeue, note_spent, read_submission, requeues, slurm_log
from launcher.submission.requeueing import Cause, Decision, Ending, Then, decide, find_cause, is_machines, spent
from launcher.submission.slurm import delay, requeue, scancel, show_job
from launcher.unchanged import load_unchanged

_TAIL_BYTES = 8192
_REASON_LETTERS = 300
"""Of a failure, in an event: lines of events.jsonl are short."""
RECORD_LIMIT_S = 30.0
"""How long a job waits for the record of its own submission: it may begin before sbatch has answered."""


class Signals(Protocol):
    """What `launcher.slurm_job.Warnings` offers."""

    seen: set[int]
    ends_preparation: bool

    def ignore(self) -> None:
        """Makes signals change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a job, as Slurm describes it."""

    run_dir: RunDir
    job: str
    nodes: str
    """Slurm's node list."""
    restarts: int
    """How often the job was put back into the queue before this start."""

    @staticmethod
    def of(run: str, environment: Mapping[str, str]) -> Start:
        """Reads Slurm's variables. Raises ClusterError outside of a job, CheckpointError when the folder holds no run."""
        if "SLURM_JOB_ID" not in environment:
            raise ClusterError("this is not a Slurm job", where="SLURM_JOB_ID", fix="ftlaunch submit makes one; without Slurm use ftlaunch --resume RUN")
        return Start(
            run_dir=find_run(Path(run), "the run's folder"),
            job=environment["SLURM_JOB_ID"],
            nodes=environment.get("SLURM_JOB_NODELIST", ""),
            restarts=int(environment.get("SLURM_RESTART_COUNT", "0")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """How a launch went."""

    status: int
    failure: FtError | None = None


def run_start(start: Start, signals: Signals) -> int:
    """Runs the launch and does what follows its end; returns the status of the launch, or PREEMPTED when the job was put back too often to begin."""
    run_dir = start.run_dir
    submission = _read_record(start)
    if cancelled_path(run_dir).exists():
        _say(f"{shown(run_dir.path)} was cancelled; `ftlaunch submit --resume` goes on with it")
        return 0
    if ended_well(run_dir):
        _say("the run is done already: nothing to do")
        return 0
    _note_slurms_own(start)
    over = spent(start.restarts, submission.scheduler)
    if over is not None:
        note_spent(run_dir, job=start.job, restart=start.restarts, reason=over.reason)
        _follow(start, submission, over, signals)
        _say(f"to go on: {_again(run_dir)}")
        return PREEMPTED
    noted = any(event.get("restart") == start.restarts and event.get("by") == "ftlaunch" for event in requeues(run_dir, start.job))
    outcome = _launch(start, submission, signals)
    ending = Ending(
        status=outcome.status,
        is_infrastructure=is_machines(outcome.failure),
        why=first_line(outcome.failure)[:_REASON_LETTERS] if outcome.failure is not None else "",
        cause=_cause(start, outcome.status, signals),
        restarts=start.restarts,
        noted=noted,
        jobs_left=len(_left(start, submission)),
    )
    _follow(start, submission, decide(ending, submission.scheduler), signals)
    return outcome.status


def _read_record(start: Start) -> Submission:
    """The submission with this job in it; one that was submitted by hand is its own."""
    deadline = time.monotonic() + RECORD_LIMIT_S
    while True:
        try:
            submission = read_submission(start.run_dir)
        except CheckpointError:
            if time.monotonic() > deadline:
                raise
        else:
            if start.job in submission.jobs or time.monotonic() > deadline:
                return submission
        time.sleep(0.2)


def _note_slurms_own(start: Start) -> None:
    """Writes down a requeue that this run's own jobs did not ask for: after a node failure, a preemption, or by hand."""
    known = {int(event["restart"]) for event in requeues(start.run_dir, start.job)}
    if start.restarts and start.restarts - 1 not in known:
        reason = "a node failed, another job took the nodes, or somebody asked for it"
        note_requeue(start.run_dir, job=start.job, restart=start.restarts - 1, reason=reason, delay_s=0.0, by="slurm")


def _launch(start: Start, submission: Submission, signals: Signals) -> _Outcome:
    """Goes on with the run; its exit status, and its error after that was printed."""
    # srun hands the job's whole environment to its steps again, and binds no supervisor with all its ranks to one core.
    os.environ.pop("SLURM_EXPORT_ENV", None)
    try:
        signals.ends_preparation = True
        if signals.seen:
            raise EarlyWarningError
        scheduler = submission.scheduler
        write_atomic(job_hosts_path(start.run_dir), render_hostfile(job_hosts(start.nodes, (scheduler.slots_per_node or 1,))))
        variables = read_env_file(Path(submission.env_file)) if submission.env_file else {}
        _say(f"job {start.job} on {start.nodes}" + (f", put back {start.restarts} times" if start.restarts else ""))
        _settle_hosts(start.run_dir)
        advice = f"{_again(start.run_dir)}   (unless the job goes back into the queue by itself)"
        manner = Manner(
            dry_run=False,
            exports=submission.exports,
            variables=variables,
            launcher="srun",
            env_file=submission.env_file,
            advice=advice,
            force=submission.force,
            data_change_allowed=submission.time if submission.allow_data_change else 0.0,
        )
        start_again(start.run_dir, Options(hosts=job_hosts_path(start.run_dir)), manner)
    except EarlyWarningError:
        _say("asked to stop before anything was started")
        return _Outcome(status=PREEMPTED)
    except FtError as error:
        print_error(error)
        return _Outcome(status=error.exit_status, failure=error)
    finally:
        signals.ends_preparation = False
    return _Outcome(status=0)


def _again(run_dir: RunDir) -> str:
    return f"ftlaunch submit --resume {shlex.quote(shown(run_dir.path))}"


def _settle_hosts(run_dir: RunDir) -> None:
    """Before the first launch the job's hosts take the place of those that stood for them; that is no change of a run."""
    if next_attempt(run_dir) > 1:
        return
    with locked(run_dir):
        before = load_unchanged(run_dir)
        after = resolve_again(before, Options(hosts=job_hosts_path(run_dir)), 1)
        if after != before:
            change_run(run_dir, before, after)
        for path in (run_dir.resolved, run_dir.ds_config):
            kept_path(run_dir, path).unlink(missing_ok=True)


def _cause(start: Start, status: int, signals: Signals) -> Cause:
    """Whether Slurm is ending this job, and why."""
    if cancelled_path(start.run_dir).exists():
        return Cause.CANCELLED
    if status == 0:
        return Cause.NOTHING
    # What is asked now must not be ended by the signal that ends this job.
    signals.ignore()
    try:
        now = show_job(start.job)
    except ClusterError as error:
        print_error(error)
        now = None
    return find_cause(now, _log_tail(start), start.job, start.restarts)


def _log_tail(start: Start) -> str:
    """The end of the job's log, of this start alone: of an earlier one Slurm's words would mislead."""
    try:
        with slurm_log(start.run_dir, start.job).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode(errors="replace").rpartition(f"job {start.job} on {start.nodes}")[2]
    except OSError:
        return ""


def _left(start: Start, submission: Submission) -> tuple[str, ...]:
    """The jobs of the chain behind this one."""
    return submission.jobs[submission.jobs.index(start.job) + 1 :] if start.job in submission.jobs else ()


def _follow(start: Start, submission: Submission, decision: Decision, signals: Signals) -> None:
    left = _left(start, submission)
    if decision.then is Then.REQUEUE:
        _say(f"{decision.reason}: back into the queue, for the {start.restarts + 1}. time, in {decision.delay_s:.0f} s at the earliest")
        _requeue(start, decision, signals)
    elif decision.then is Then.NEXT_JOB:
        _say(f"{decision.reason}: job {left[0]} of the chain goes on")
    elif decision.then is Then.END_CHAIN and left:
        _say(f"{decision.reason}: {len(left)} jobs of the chain are cancelled")
        try:
            scancel(submission, left)
        except ClusterError as error:
            print_error(error)
    elif decision.then is not Then.END_CHAIN or decision.is_bad:
        _say(f"the job is not put back: {decision.reason}")


def _requeue(start: Start, decision: Decision, signals: Signals) -> None:
    """Written down first: a job that is asked twice counts once."""
    note_requeue(start.run_dir, job=start.job, restart=start.restarts, reason=decision.reason, delay_s=decision.delay_s, by="ftlaunch")
    # Slurm ends this process as soon as it has heard of the requeue.
    signals.ignore()
    try:
        requeue(start.job)
        delay(start.job, decision.delay_s)
    except ClusterError as error:
        print_error(error)


def _say(text: str) -> None:
    sys.stdout.write(f"ftlaunch: {text}\n")
    sys.stdout.flush()
