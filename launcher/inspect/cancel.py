"""`ftlaunch cancel RUN`: ends what runs and takes back what waits, here, on another host, or in Slurm. The run can go on later."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from ftcore.spec.errors import ClusterError
from ftcore.spec.resolved import Host, load_resolved
from ftcore.spec.run_dir import RunDir
from launcher.inspect.events import Holder, holder
from launcher.run_folder import shown, write_files
from launcher.submission.record import Submission, cancelled_path, is_submitted, read_submission
from launcher.submission.slurm import JobState, ask_jobs, scancel
from launcher.transport import SshOptions, ssh_argv

END_LIMIT_S = 15.0
"""A launch that is ended by SIGINT is gone by then, on all hosts."""
SAVE_MARGIN_S = 30.0
"""Beside cluster.preempt_grace: for what comes before and after a save."""
KILL_LIMIT_S = 60.0
"""After scancel: Slurm kills after its KillWait, 30 s where nobody has changed it."""
TELL_S = 3.0
POLL_S = 0.2
ASK_S = 1.0
SSH_LIMIT_S = 20.0
_NO_LAUNCHER = 99
"""Status of the remote look at a process that is none; ssh itself has 255."""

Say = Callable[[str], None]


def cancel(run_dir: RunDir, say: Say, *, save: bool) -> None:
    """Returns when nothing of the run is left. With `save` the run saves a checkpoint first.

    Raises ClusterError that says what is left and how to end it.
    """
    submission = read_submission(run_dir) if is_submitted(run_dir) else None
    alive = [job for job in ask_jobs(submission) if job.waits or job.runs] if submission else []
    held = holder(run_dir)
    if held is None and not alive:
        say(f"{shown(run_dir.path)}: nothing of it runs or waits")
        return
    limit_s = load_resolved(run_dir.resolved).spec.cluster.preempt_grace + SAVE_MARGIN_S if save else END_LIMIT_S
    if submission is not None and alive:
        _cancel_jobs(run_dir, submission, alive, say, save=save, limit_s=limit_s)
    elif held is not None:
        _end_launch(run_dir, held, signal.SIGTERM if save else signal.SIGINT)
        say(f"{shown(run_dir.path)}: told process {held.pid} on {held.host} to {'save and end' if save else 'end'}")
    _wait_until_free(run_dir, say, limit_s)
    say(f"{shown(run_dir.path)}: ended; it can go on: {_advice(run_dir, submission)}")


def _cancel_jobs(run_dir: RunDir, submission: Submission, alive: list[JobState], say: Say, *, save: bool, limit_s: float) -> None:
    """First the mark that keeps a job from beginning or being requeued, then those that wait, then those that run."""
    write_files({cancelled_path(run_dir): "ftlaunch cancel\n"})
    waiting = tuple(job.job for job in alive if job.waits)
    running = tuple(job.job for job in alive if job.runs)
    if waiting:
        scancel(submission, waiting)
    if running:
        # SIGTERM of scancel would ask for a save, and Slurm kills in the midst of it.
        signame = submission.scheduler.signal if save else "INT"
        scancel(submission, running, f"--signal={signame}", "--batch")
        say(f"{shown(run_dir.path)}: told job {', '.join(running)} to {'save and end' if save else 'end'}")
        _wait_for_jobs(submission, running, say, limit_s)
    scancel(submission, submission.jobs)
    left = _wait_for_jobs(submission, submission.jobs, say, KILL_LIMIT_S)
    if left:
        jobs = ", ".join(f"{job.job} ({job.state})" for job in left)
        raise ClusterError(f"jobs are still there: {jobs}", where="Slurm", fix=f"look at them (squeue), then: scancel {' '.join(job.job for job in left)}")


def _wait_for_jobs(submission: Submission, jobs: tuple[str, ...], say: Say, limit_s: float) -> list[JobState]:
    """Those of `jobs` that are left after `limit_s`."""
    began = told = time.monotonic()
    while True:
        left = [job for job in ask_jobs(submission) if job.job in jobs and (job.waits or job.runs)]
        now = time.monotonic()
        if not left or now - began > limit_s:
            return left
        if now - told > TELL_S:
            told = now
            say(f"waiting for job {', '.join(job.job for job in left)}: {left[0].state.lower()}")
        time.sleep(ASK_S)


def _end_launch(run_dir: RunDir, held: Holder, signum: signal.Signals) -> None:
    """Signals the launcher that holds the folder. Raises ClusterError when it can't be reached."""
    if not held.pid:
        raise ClusterError("the launch that owns the folder has not said its process yet", where=str(run_dir.lock), fix="try again in a second")
    if held.host == socket.gethostname():
        _signal_here(run_dir, held, signum)
        return
    command = f"kill -s {signum.name.removeprefix('SIG')} {held.pid}"
    looks = f"tr '\\0' ' ' < /proc/{held.pid}/cmdline 2>/dev/null | grep -q -e launcher -e ftlaunch || exit {_NO_LAUNCHER}; {command}"
    # In sh, whatever the user's shell over there is.
    argv = ssh_argv(Host(name=held.host, slots=1), f"sh -c {shlex.quote(looks)}", SshOptions(options=load_resolved(run_dir.resolved).spec.cluster.ssh_options))
    try:
        ended = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=SSH_LIMIT_S, check=False)
        if ended.returncode == _NO_LAUNCHER:
            raise _no_launcher(run_dir, held, f"on {held.host}")
        trouble = "" if ended.returncode == 0 else (ended.stderr.strip().rpartition("\n")[2] or f"exit status {ended.returncode}")
    except (OSError, subprocess.TimeoutExpired) as error:
        trouble = str(error)
    if trouble:
        fix = f"on {held.host}: {command}"
        raise ClusterError(f"its launcher is process {held.pid} on {held.host}, which can't be told from here: {trouble}", where=held.host, fix=fix)


def _no_launcher(run_dir: RunDir, held: Holder, place: str) -> ClusterError:
    return ClusterError(
        f"process {held.pid} is no launcher {place}, yet the folder is owned",
        where=str(run_dir.lock),
        fix=f"it may be in a container, or its ranks outlived it: `fuser -v {shlex.quote(str(run_dir.lock))}` {place} names who holds it",
    )


def _signal_here(run_dir: RunDir, held: Holder, signum: signal.Signals) -> None:
    gone = _no_launcher(run_dir, held, "on this host")
    try:
        handle = os.pidfd_open(held.pid)
    except OSError as error:
        raise gone from error
    try:
        # The descriptor pins the process: looked at after that, its number is not another one's.
        if b"launcher" not in (command := Path(f"/proc/{held.pid}/cmdline").read_bytes()) and b"ftlaunch" not in command:
            raise gone
        if holder(run_dir) == held:
            signal.pidfd_send_signal(handle, signum)
    except OSError as error:
        raise gone from error
    finally:
        os.close(handle)


def _wait_until_free(run_dir: RunDir, say: Say, limit_s: float) -> None:
    """Raises ClusterError when a process of the launch still holds the folder after `limit_s`."""
    began = told = time.monotonic()
    while (held := holder(run_dir)) is not None:
        now = time.monotonic()
        if now - began > limit_s:
            fix = f"on {held.host}: kill -s KILL {held.pid}; its processes end by themselves after it"
            raise ClusterError(f"process {held.pid} on {held.host} has not ended within {limit_s:.0f} s", where=str(run_dir.lock), fix=fix)
        if now - told > TELL_S:
            told = now
            say(f"waiting for process {held.pid} on {held.host}, for {now - began:.0f} s of at most {limit_s:.0f} s")
        time.sleep(POLL_S)


def _advice(run_dir: RunDir, submission: Submission | None) -> str:
    name = shlex.quote(shown(run_dir.path))
    return f"ftlaunch submit --resume {name}" if submission is not None else f"ftlaunch --resume {name}"
