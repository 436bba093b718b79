"""The points of a scaling test as jobs of Slurm: one job a point, queued at once, collected as they end."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

from ftcore.spec.errors import CheckpointError, ClusterError, DoesNotFitError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.scale_result import DOES_NOT_FIT, FAILED, QUEUED, RUNNING, WAITING, ScalePoint
from launcher.ds_config import render_ds_config
from launcher.inspect.events import ended_well, last_launch
from launcher.resolve import Resolution
from launcher.run_folder import shown, write_files
from launcher.scaling.identity import IDENTITY_NAME, identity_text
from launcher.scaling.points import Wanted
from launcher.scaling.sweep import Sweep
from launcher.short_runs import drop_saved
from launcher.submission.elements import Element
from launcher.submission.record import Submission, is_submitted, read_submission
from launcher.submission.request import Run
from launcher.submission.slurm import JobState, ask_jobs
from launcher.submission.submitting import How, require_room_there, submit_new

LOOK_AGAIN_S = 2.0
"""Between two questions to Slurm while somebody waits; slurmctld answers in milliseconds."""


def submit_points(sweep: Sweep) -> int:
    """Queues a job for each point that has none; how many. A point that does not fit by the ledger is marked.

    Raises ClusterError when Slurm refuses a job: what was queued before it stays, and is collected as ever.
    """
    queued = 0
    for wanted in sweep.open_points():
        if sweep.points[wanted.name].state != WAITING:
            continue
        how = How(on_cpu=sweep.request.on_cpu, chain=1, env_file=_env_file(sweep), exports=False, force=sweep.request.force)
        try:
            require_room_there(wanted.cut, how)
        except DoesNotFitError as error:
            _mark(sweep, wanted, DOES_NOT_FIT, error.problems[0].what, error.exit_status)
            continue
        path = sweep.folder.point(wanted.name)
        if path.exists():
            shutil.rmtree(path)
        [(_, submission)] = submit_new((_run(sweep, wanted),), path, how)
        write_files({path / IDENTITY_NAME: identity_text(sweep.identities[wanted.name])})
        sweep.keep(replace(sweep.points[wanted.name], state=QUEUED, job=submission.jobs[-1], key=sweep.key(wanted)))
        sweep.progress.line(f"{wanted.name}: job {submission.jobs[-1]}")
        queued += 1
    return queued


def collect_jobs(sweep: Sweep) -> list[ScalePoint]:
    """Takes in what jobs have done; the points whose jobs wait or run. Raises ClusterError when Slurm does not answer."""
    left = []
    for wanted in sweep.open_points():
        before = sweep.points[wanted.name]
        if before.state not in (QUEUED, RUNNING):
            continue
        point = _look(sweep, wanted)
        if point.state in (QUEUED, RUNNING):
            left.append(point)
        if point.state != before.state:
            sweep.progress.line(_told(point))
    return left


def wait_for_jobs(sweep: Sweep) -> None:
    """Collects until no job waits or runs. Raises ClusterError when Slurm does not answer."""
    while left := collect_jobs(sweep):
        running = [point.name for point in left if point.state == RUNNING]
        sweep.progress.show({"event": "progress", "stage": "jobs", "text": f"{len(left)} left, of which {len(running)} run{'s' if len(running) == 1 else ''}"})
        time.sleep(LOOK_AGAIN_S)
    sweep.progress.flush()


def _look(sweep: Sweep, wanted: Wanted) -> ScalePoint:
    """The point as its job has it now."""
    path = sweep.folder.point(wanted.name)
    run_dir = RunDir(path)
    if ended_well(run_dir):
        try:
            return sweep.collect(wanted)
        except CheckpointError as error:
            return _mark(sweep, wanted, FAILED, error.problems[0].what, error.exit_status)
        finally:
            drop_saved(run_dir)
    if not is_submitted(run_dir):
        return _mark(sweep, wanted, FAILED, f"{shown(path)} is gone, and its job's numbers with it", CheckpointError.exit_status)
    job = _job(read_submission(run_dir))
    if job.waits or job.runs:
        point = replace(sweep.points[wanted.name], state=RUNNING if job.runs else QUEUED, reason=job.reason if job.waits else "")
        sweep.keep(point)
        return point
    if ended_well(run_dir):
        # Between the two looks.
        return _look(sweep, wanted)
    last = last_launch(run_dir)
    why = last.reason if last is not None and last.reason else f"Slurm says {job.state}{f', {job.reason}' if job.reason else ''}"
    status = last.status if last is not None and last.status else ClusterError.exit_status
    drop_saved(run_dir)
    return _mark(sweep, wanted, DOES_NOT_FIT if status == DoesNotFitError.exit_status else FAILED, f"job {job.job}: {why}", status)


def _job(submission: Submission) -> JobState:
    return ask_jobs(submission)[-1]


def _mark(sweep: Sweep, wanted: Wanted, state: str, reason: str, status: int) -> ScalePoint:
    point = replace(sweep.points[wanted.name], state=state, reason=reason, exit_status=status, key=sweep.key(wanted))
    sweep.keep(point)
    return point


def _told(point: ScalePoint) -> str:
    if point.is_measured:
        return f"{point.name}: measured, {point.update_seconds:.4g} s an update"
    return f"{point.name}: job {point.job} {'runs' if point.state == RUNNING else 'waits' if point.state == QUEUED else f'failed: {point.reason}'}"


def _run(sweep: Sweep, wanted: Wanted) -> Run:
    """The point as what is submitted."""
    request = sweep.request
    resolution = Resolution(
        resolved=wanted.cut,
        spec_text=request.spec_text,
        origin=request.spec_name,
        ds_config=render_ds_config(wanted.cut),
        zero_config=request.zero_config,
    )
    return Run(element=Element(sets=(), label=""), resolution=resolution, scheduler=wanted.scheduler or wanted.cut.spec.cluster.scheduler)


def _env_file(sweep: Sweep) -> Path | None:
    return Path(sweep.request.env_file) if sweep.request.env_file else None
