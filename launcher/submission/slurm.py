"""Slurm's commands: run without a shell, bounded in time, with errors that say what Slurm said."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.errors import ClusterError
from launcher.submission.record import Submission

COMMAND_LIMIT_S = 20.0
"""For one question with all its tries; slurmctld answers in milliseconds, or its own time limit of 10 s ends a call."""
SUBMIT_LIMIT_S = 60.0
PAUSES_S = (1.0, 3.0)
"""Before the second and the third try of a question that was answered by an error."""
LEAST_S = 1.0
"""With less time left there is no further try."""

_PASSED = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
_DEFAULTS = {"SBATCH_ACCOUNT": "account", "SBATCH_PARTITION": "partition", "SBATCH_QOS": "qos", "SBATCH_CONSTRAINT": "constraint"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What squeue or sacct says of a job."""

    job: str
    state: str
    """Slurm's word: PENDING, RUNNING, COMPLETING, COMPLETED, CANCELLED, TIMEOUT, ...; GONE when nobody knows the job any more."""
    reason: str = ""
    """Why it waits, or ended."""
    nodes: str = ""
    """Slurm's node list; empty while it waits."""
    restarts: int = 0
    """How often it was put back into the queue."""

    @property
    def waits(self) -> bool:
        """Whether it has not begun, or not begun again."""
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")

    @property
    def runs(self) -> bool:
        """Whether processes of it may be alive."""
        return self.state in ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")


def submit(run: Path, script: Path, names: tuple[str, ...], environment: Mapping[str, str], *, after: str = "") -> tuple[str, str]:
    """Submits a script from the folder `run`; (job id, cluster or ""). `names` of `environment` reach the job; `after` is a job that must have ended.

    Raises ClusterError with what sbatch said.
    """
    argv = ["sbatch", "--parsable", f"--export={','.join(names) or 'NIL'}", *([f"--dependency=afterany:{after}"] if after else []), script.name]
    ended = _call(argv, cwd=run, environment=environment, limit_s=SUBMIT_LIMIT_S)
    matched = re.fullmatch(r"([0-9]+)(?:;(\S+))?", ended.stdout.strip().splitlines()[-1] if ended.stdout.strip() else "")
    if ended.returncode != 0 or matched is None:
        raise ClusterError(f"sbatch refused the job: {_said(ended)}", where="sbatch", fix=f"see `sinfo` and `sacctmgr show assoc`; the script is {script.name}")
    return matched[1], matched[2] or ""


def sbatch_environment(environment: Mapping[str, str], names: tuple[str, ...], given: Mapping[str, object]) -> dict[str, str]:
    """Variables for sbatch itself: those that reach the job, and of Slurm's own those that change nothing the script says.

    SBATCH_* variables win over #SBATCH lines, and SLURM_* of a surrounding job would reach this one. `given` are the scheduler's values.
    """
    slurm = [name for name in environment if name in _PASSED or (name in _DEFAULTS and not given.get(_DEFAULTS[name]))]
    return {name: environment[name] for name in (*names, "PATH", "HOME", "USER", "LOGNAME", *slurm) if name in environment}


def ask_jobs(submission: Submission) -> list[JobState]:
    """The state of each job of a submission, in its order. Raises ClusterError when slurmctld does not answer after three tries."""
    jobs = ",".join(submission.jobs)
    form = "%i|%T|%r|%N"
    listed = _answer(["squeue", *_cluster(submission), "--noheader", f"--jobs={jobs}", "--states=all", f"--format={form}"], gone="Invalid job id")
    known = {row[0]: JobState(job=row[0], state=row[1], reason=_word(row[2]), nodes=row[3]) for row in _rows(listed, 4)}
    missing = [job for job in submission.jobs if job not in known]
    known |= {job.job: job for job in _accounted(submission, missing)} if missing else {}
    return [known.get(job, JobState(job=job, state="GONE")) for job in submission.jobs]


def show_job(job: str) -> JobState:
    """What slurmctld says of one job that runs or has just ended. Raises ClusterError when it does not answer."""
    fields = dict(part.split("=", 1) for part in _answer(["scontrol", "--oneliner", "show", "job", job]).split() if "=" in part)
    restarts = fields.get("Restarts", "0")
    return JobState(
        job=job, state=fields.get("JobState", "GONE"), reason=_word(fields.get("Reason", "")), nodes=fields.get("NodeList", ""), restarts=int(restarts)
    )


def requeue(job: str) -> None:
    """Puts a job back into the queue; its processes get SIGTERM. Raises ClusterError."""
    _answer(["scontrol", "requeue", job])


def delay(job: str, seconds: float) -> None:
    """Makes a job wait at least so long. Raises ClusterError."""
    _answer(["scontrol", "update", f"JobId={job}", f"StartTime=now+{max(0, round(seconds))}"])


def scancel(submission: Submission, jobs: tuple[str, ...], *options: str) -> None:
    """Cancels or signals jobs; those that have ended are no error. Raises ClusterError."""
    _answer(["scancel", *_cluster(submission), "--quiet", *options, *jobs], gone="Invalid job id")


def _accounted(submission: Submission, jobs: list[str]) -> list[JobState]:
    """What sacct knows of jobs that slurmctld has forgotten; nothing where there is no accounting."""
    argv = ["sacct", *_cluster(submission), "--noheader", "--parsable2", "--allocations", "--duplicates", f"--jobs={','.join(jobs)}"]
    try:
        ended = _call([*argv, "--format=JobID,State,NodeList"], limit_s=COMMAND_LIMIT_S)
    except ClusterError:
        return []
    if ended.returncode != 0:
        return []
    # `CANCELLED by 1000` is one state; of a requeued job the last line counts.
    return [JobState(job=row[0], state=row[1].split()[0], nodes=_word(row[2])) for row in _rows(ended.stdout, 3) if row[1]]


def _rows(text: str, count: int) -> list[list[str]]:
    return [row for line in text.splitlines() if len(row := line.split("|")) == count]


def _word(text: str) -> str:
    return "" if text in ("None", "(null)", "None assigned", "N/A") else text


def _cluster(submission: Submission) -> tuple[str, ...]:
    return (f"--clusters={submission.cluster}",) if submission.cluster else ()


def _answer(argv: list[str], *, gone: str = "") -> str:
    """stdout of a command, tried three times within COMMAND_LIMIT_S. `gone`: text of an error that only says that the job is no longer known."""
    end = time.monotonic() + COMMAND_LIMIT_S
    said = ""
    for pause in (0.0, *PAUSES_S):
        left = end - time.monotonic() - pause
        if said and left < LEAST_S:
            break
        time.sleep(pause)
        ended = _call(argv, limit_s=left)
        if ended.returncode == 0 or (gone and gone in ended.stderr):
            return ended.stdout
        is_silent = ended.returncode == os.EX_TEMPFAIL
        # An error tells more than the silence after it.
        said = said if said and is_silent else _said(ended)
        if is_silent or "Invalid" in ended.stderr:
            break
    raise ClusterError(f"{argv[0]} got no answer: {said}", where="Slurm", fix="see `scontrol ping`, and try again")


def _call(argv: list[str], *, limit_s: float, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, os.EX_TEMPFAIL, "", f"no answer within {limit_s:.0f} s")
    except OSError as error:
        fix = "work on a host where Slurm's commands are (sbatch, squeue, scontrol, scancel)"
        raise ClusterError(f"can't start {argv[0]}: {error.strerror}", where="Slurm", fix=fix) from error


def _said(ended: subprocess.CompletedProcess[str]) -> str:
    lines = [line.removeprefix("sbatch: error: ").strip() for line in (ended.stderr + "\n" + ended.stdout).splitlines() if line.strip()]
    return "; ".join(lines[:4]) or f"exit status {ended.returncode}"
