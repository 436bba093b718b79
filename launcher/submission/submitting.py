"""Makes the run folders of a submission and hands their scripts to sbatch; all of the jobs are queued, or none is."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ftcore.spec.cluster import SchedulerSection
from ftcore.spec.errors import ClusterError, FtError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from launcher.environment import import_root, read_env_file
from launcher.forwarding import forwarded
from launcher.hostfile import render_hostfile
from launcher.launching import tell
from launcher.run_folder import locked, make_default_folder, make_named_folder, next_attempt, shown, write_files
from launcher.submission.job_script import JobContext, check_folder, render_job_script
from launcher.submission.record import (
    Submission,
    cancelled_path,
    is_submitted,
    job_hosts_path,
    job_script_path,
    read_submission,
    submission_path,
    submission_text,
)
from launcher.submission.request import Asked, Run, scheduler_again, settled
from launcher.submission.slurm import ask_jobs, sbatch_environment, scancel, submit
from launcher.unchanged import load_unchanged, record_path, record_text, require_ds_config

BASE_VARIABLES = ("HOME", "LOGNAME", "PATH", "SHELL", "USER")
"""What every program expects; Slurm hands over only what is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How runs are submitted, apart from what they compute and what is asked for."""

    on_cpu: bool
    chain: int
    """Jobs that follow each other for each run."""
    env_file: Path | None
    exports: bool
    force: bool = False
    """Submit, and launch in the job, what does not fit by the ledger."""
    allow_data_change: bool = False
    """The run may go on with other training data, once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """The variables of the submitting shell that reach a job."""

    names: tuple[str, ...]
    withheld: tuple[str, ...]
    """Those that would, but hold secrets."""


def passed_variables(environment: Mapping[str, str], extra: tuple[str, ...]) -> Passed:
    """What of `environment` a job gets: what other hosts get too, but for secrets, since slurmctld writes a job's environment to its disk."""
    those = forwarded(environment, {}, extra)
    base = tuple(name for name in BASE_VARIABLES if name in environment)
    return Passed(names=tuple(sorted({*those.plain_names, *base})), withheld=those.secret_names)


def make_folder(run: Run, output: Path | None, parent: Path | None) -> RunDir:
    """The new folder of one run: in `parent` for an element of an array, else `output`, else one named by time and model."""
    if parent is not None:
        return make_named_folder(parent / run.element.label)
    if output is not None:
        return make_named_folder(output)
    return make_default_folder(Path.cwd(), run.resolution.resolved.spec.model.model_name_or_path, time.localtime())


def make_parent(runs: tuple[Run, ...], output: Path | None) -> Path | None:
    """The folder that holds the folders of an array; None when there is no array."""
    if not runs[0].element.label:
        return None
    return make_folder(runs[0], output, None).path


def script_for(run_dir: Path, scheduler: SchedulerSection, how: How) -> str:
    """The text of job.sbatch for a run in this folder."""
    context = JobContext(run_dir=run_dir, launch_dir=Path.cwd(), python=sys.executable, import_root=import_root(), scheduler=scheduler, on_cpu=how.on_cpu)
    return render_job_script(context)


def submit_new(runs: tuple[Run, ...], output: Path | None, how: How) -> list[tuple[RunDir, Submission]]:
    """Makes the folders and submits their jobs. Raises the FtError of the first that is refused, after taking back all the others."""
    check_folder(output.absolute() if output is not None else Path.cwd())
    done: list[tuple[RunDir, Submission]] = []
    made: list[Path] = []
    try:
        parent = make_parent(runs, output)
        made += [parent] if parent is not None else []
        for run in runs:
            run_dir = make_folder(run, output, parent)
            made.append(run_dir.path)
            with locked(run_dir):
                resolved = settled(run, job_hosts_path(run_dir))
                _fill(run_dir, run, resolved)
                done.append((run_dir, _submit(run_dir, resolved, run.scheduler, how)))
    except (FtError, KeyboardInterrupt):
        _take_back(done, made)
        raise
    return done


def submit_again(run_dir: RunDir, asked: Asked, how: How) -> Submission:
    """Queues jobs that go on with a run that was submitted or launched before; what `how` leaves open is as the earlier submission had it.

    Raises ClusterError while jobs of it are queued or running, CheckpointError when its files were changed or a launch owns the folder.
    """
    check_folder(run_dir.path)
    with locked(run_dir):
        resolved = load_unchanged(run_dir)
        require_ds_config(run_dir, resolved)
        earlier = read_submission(run_dir) if is_submitted(run_dir) else None
        if earlier is not None:
            _require_ended(run_dir, earlier)
            how = _as_before(how, earlier)
        section = earlier.scheduler if earlier is not None else resolved.spec.cluster.scheduler
        require_room_there(resolved, how, goes_on=True)
        scheduler = scheduler_again(resolved, section, asked, next_attempt(run_dir))
        return _submit(run_dir, resolved, scheduler, how)


def require_room_there(resolved: ResolvedSpec, how: How, *, goes_on: bool = False, refuses: bool = True) -> None:
    """Tells what is short on the job's hosts, as far as spec.hardware says what they have.

    Raises DoesNotFitError when it can't fit, unless `how.force`, or it does not refuse (a dry run).
    """
    from launcher.memory.launch_fit import check_launch

    tell(check_launch(resolved, refuses=refuses and not how.force, elsewhere=True, goes_on=goes_on))


def _as_before(how: How, earlier: Submission) -> How:
    """`how` with what the earlier submission said and nobody says anew. Raises SpecError when its --env-file can't be read any more."""
    env_file = how.env_file
    if env_file is None and earlier.env_file:
        env_file = Path(earlier.env_file)
        read_env_file(env_file)
    return replace(how, on_cpu=how.on_cpu or earlier.on_cpu, env_file=env_file, exports=how.exports and earlier.exports, force=how.force or earlier.force)


def _require_ended(run_dir: RunDir, earlier: Submission) -> None:
    alive = [job for job in ask_jobs(earlier) if job.waits or job.runs]
    if alive:
        jobs = ", ".join(f"{job.job} ({job.state})" for job in alive)
        raise ClusterError(f"jobs of this run are there already: {jobs}", where="--resume", fix=f"wait for them, or ftlaunch cancel {shown(run_dir.path)}")


def _fill(run_dir: RunDir, run: Run, resolved: ResolvedSpec) -> None:
    fixed = {run_dir.ds_config: run.resolution.ds_config, run_dir.resolved: resolved.to_json()}
    files = {run_dir.spec: run.resolution.spec_text, record_path(run_dir): record_text(fixed), run_dir.hostfile: render_hostfile(resolved.hosts), **fixed}
    write_files({run_dir.zero_config: run.resolution.zero_config} if run.resolution.zero_config else {})
    write_files(files)


def _submit(run_dir: RunDir, resolved: ResolvedSpec, scheduler: SchedulerSection, how: How) -> Submission:
    """Writes job.sbatch, queues the jobs and writes submission.json last."""
    script = job_script_path(run_dir)
    # Slurm opens the log there, and makes no folder.
    (run_dir.path / "logs").mkdir(exist_ok=True)
    write_files({script: script_for(run_dir.path, scheduler, how)})
    names = passed_variables(os.environ, resolved.spec.cluster.forward_env).names
    environment = sbatch_environment(os.environ, names, {name: getattr(scheduler, name) for name in ("partition", "account", "qos", "constraint")})
    record = Submission(
        jobs=(),
        cluster="",
        scheduler=scheduler,
        env_file=str(how.env_file.absolute()) if how.env_file else "",
        exports=how.exports,
        on_cpu=how.on_cpu,
        time=time.time(),
        force=how.force,
        allow_data_change=how.allow_data_change,
    )
    cancelled = cancelled_path(run_dir)
    was_cancelled = cancelled.exists()
    try:
        for _ in range(how.chain):
            job, cluster = submit(run_dir.path, script, names, environment, after=record.jobs[-1] if record.jobs else "")
            record = replace(record, jobs=(*record.jobs, job), cluster=cluster)
            # Not before a job is there; and it looks for the mark only when it stands in the record.
            cancelled.unlink(missing_ok=True)
            # At once: a job that begins reads it, and a job that nobody wrote down could not be cancelled.
            write_files({submission_path(run_dir): submission_text(record)})
    except (FtError, KeyboardInterrupt):
        _cancel(record)
        if was_cancelled:
            cancelled.touch()
        raise
    return record


def _take_back(done: list[tuple[RunDir, Submission]], made: list[Path]) -> None:
    """Nothing was submitted, as far as that can be had: jobs are cancelled, and the new folders removed."""
    for _, record in done:
        _cancel(record)
    for path in reversed(made):
        shutil.rmtree(path, ignore_errors=True)


def _cancel(record: Submission) -> None:
    if record.jobs:
        with contextlib.suppress(ClusterError):
            scancel(record, record.jobs)
