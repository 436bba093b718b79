"""RUN/submission.json: which jobs run this folder, and as what they were submitted. Written once a submission; requeues are events in events.jsonl."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.cluster import SchedulerSection
from ftcore.spec.run_dir import RunDir
from ftcore.spec.stored import read_stored, stored_text
from launcher.events_file import add_event, read_events

SUBMISSION_VERSION = 1
REQUEUED = "requeued"
"""Name of the event of a job that went back into the queue."""
SPENT = "requeues_spent"
"""Name of the event of a job that was put back so often that it did not begin again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One submission of a run: a job, or a chain of them."""

    jobs: tuple[str, ...]
    """Slurm's job ids in the order in which the jobs follow each other."""
    cluster: str
    """Slurm's cluster, where sbatch named one; else empty."""
    scheduler: SchedulerSection
    """What was asked for, with nothing left open."""
    env_file: str
    """Absolute name of --env-file, which each attempt reads anew; empty: none."""
    exports: bool
    """Whether RUN/model is written at the end."""
    time: float
    """Seconds since the epoch."""
    on_cpu: bool = False
    """Whether slots are CPU ranks; a record of an earlier ftlaunch does not say it."""
    force: bool = False
    """Launch what does not fit in memory by the ledger."""
    allow_data_change: bool = False
    """The run may go on with other training data, once."""
    version: int = SUBMISSION_VERSION


def submission_path(run_dir: RunDir) -> Path:
    """RUN/submission.json."""
    return run_dir.path / "submission.json"


def job_script_path(run_dir: RunDir) -> Path:
    """RUN/job.sbatch."""
    return run_dir.path / "job.sbatch"


def job_hosts_path(run_dir: RunDir) -> Path:
    """RUN/slurm_hosts: the hosts that the job which runs now was given."""
    return run_dir.path / "slurm_hosts"


def cancelled_path(run_dir: RunDir) -> Path:
    """RUN/.cancelled: there once the run was cancelled, so that no job of it begins or is requeued."""
    return run_dir.path / ".cancelled"


def slurm_log(run_dir: RunDir, job: str) -> Path:
    """What a job's own process and Slurm printed."""
    return run_dir.path / "logs" / f"slurm-{job}.out"


def is_submitted(run_dir: RunDir) -> bool:
    """Whether jobs of a scheduler run this folder."""
    return submission_path(run_dir).is_file()


def read_submission(run_dir: RunDir) -> Submission:
    """Raises CheckpointError when the file is missing or damaged."""
    fix = "submit the run again: ftlaunch submit --resume RUN"
    return read_stored(Submission, submission_path(run_dir), version=SUBMISSION_VERSION, name="a submission of ftlaunch", fix=fix)


def submission_text(submission: Submission) -> str:
    """The file's text."""
    return stored_text(submission)


def note_requeue(run_dir: RunDir, *, job: str, restart: int, reason: str, delay_s: float, by: str) -> None:
    """Adds the event of a requeue. `restart` is how often the job had been started anew before it; `by` is ftlaunch or slurm."""
    add_event(run_dir, {"event": REQUEUED, "time": time.time(), "job": job, "restart": restart, "reason": reason, "delay_s": delay_s, "by": by})


def note_spent(run_dir: RunDir, *, job: str, restart: int, reason: str) -> None:
    """Adds the event of a job that was put back more often than it may be; `restart` is how often."""
    add_event(run_dir, {"event": SPENT, "time": time.time(), "job": job, "restart": restart, "reason": reason})


def requeues(run_dir: RunDir, job: str) -> list[dict[str, Any]]:
    """The events of this job's requeues."""
    return [event for event in read_events(run_dir, REQUEUED) if event.get("job") == job]
