"""`ftlaunch status RUN`: one look at a run, whatever runs it."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.errors import CheckpointError, ClusterError
from ftcore.spec.resolved import load_resolved
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_record import RunRecord, attempts, read_run, totals
from ftcore.spec.scale_result import ScaleDir
from launcher.events_file import read_events
from launcher.failure import tail
from launcher.inspect.events import LastLaunch, holder, last_launch, last_line
from launcher.inspect.state import Seen, State, judge
from launcher.memory.cost_text import spent
from launcher.progress import clock_time, gibibytes, number
from launcher.run_folder import newest_checkpoint, next_attempt, shown, update_of
from launcher.submission.record import cancelled_path, is_submitted, read_submission, requeues
from launcher.submission.request import is_placeholder
from launcher.submission.slurm import JobState, ask_jobs
from launcher.time_left import seconds_left

_AN_END = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b|the process that imports for the ranks")
"""How a line of a supervisor's log begins that tells of an end: the last one of a traceback, or the supervisor's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is known of a run. A None or an empty text: nothing."""

    run: str
    state: str
    why: str
    attempt: int
    """Launches so far."""
    world_size: int
    hosts: list[str]
    """Empty while a job has none yet."""
    launcher: str
    """`process PID on HOST`, while a launch owns the folder."""
    launcher_alive: bool | None
    """None: it is on another host."""
    update: int | None
    total_updates: int | None
    loss: float | str | None
    tokens_per_s: float | None
    """Of the newest attempt that trained, over all its updates, as the next two (ftcore.spec.run_record)."""
    supervised_tokens_per_s: float | None
    peak_memory_bytes: int | None
    """Of rank 0."""
    device_hours: float
    """Over all attempts, from each launch to its end."""
    cost: float | None
    """device_hours at hardware.price_per_hour; None without a price."""
    currency: str
    seconds_left: float | None
    last_update_age_s: float | None
    """Seconds since the last logged update."""
    checkpoint: str
    checkpoint_update: int | None
    jobs: list[dict[str, Any]]
    """State of each Slurm job, in order."""
    scheduler_error: str
    """Why the scheduler could not be asked."""
    requeues: int
    last_error: str


def look(run_dir: RunDir, record: RunRecord | None = None) -> Report:
    """Raises CheckpointError when the folder holds no run that can be read. `record`: as much as rates and cost are to be told of; None: all is read."""
    resolved = load_resolved(run_dir.resolved)
    held, launch = holder(run_dir), last_launch(run_dir)
    jobs, trouble, count = _jobs(run_dir)
    last, checkpoint, launches = last_line(run_dir.metrics), newest_checkpoint(run_dir), _launches(run_dir, launch)
    is_trained = last.get("update") is not None and last.get("update") == last.get("total_updates")
    seen = Seen(held=held, launch=launch, attempts=launches, is_trained=is_trained, jobs=tuple(jobs), was_cancelled=_was_cancelled(run_dir, launch))
    verdict = judge(seen)
    is_running = verdict.state is State.RUNNING
    is_early = verdict.state is State.FINISHED and bool(last) and not is_trained
    record = record or read_run(run_dir.path, with_ranks=False)
    spent, trained = totals(record), next((each for each in reversed(attempts(record)) if each.train_s > 0), None)
    return Report(
        run=shown(run_dir.path),
        state=str(verdict.state),
        why=_why_early(run_dir) if is_early else verdict.why,
        attempt=launches,
        world_size=resolved.world_size,
        hosts=[] if is_placeholder(resolved.hosts) else [f"{host.name}:{host.slots}" for host in resolved.hosts],
        launcher="" if held is None else f"process {held.pid or '?'} on {held.host or '?'}",
        launcher_alive=None if held is None or held.host != socket.gethostname() else _is_alive(held.pid),
        update=last.get("update"),
        total_updates=last.get("total_updates"),
        loss=last.get("loss"),
        tokens_per_s=trained.tokens_per_s if trained else None,
        supervised_tokens_per_s=trained.supervised_tokens_per_s if trained else None,
        peak_memory_bytes=last.get("peak_memory_bytes"),
        device_hours=spent.device_hours,
        cost=spent.cost,
        currency=spent.currency,
        seconds_left=seconds_left(record.updates) if is_running else None,
        last_update_age_s=_age(run_dir.metrics) if is_running else None,
        checkpoint=shown(checkpoint) if checkpoint else "",
        checkpoint_update=update_of(checkpoint) if checkpoint else None,
        jobs=[asdict(job) for job in jobs],
        scheduler_error=trouble,
        requeues=count,
        last_error=_last_error(run_dir, launches, f"{resolved.hosts[0].name}: ") if verdict.state is State.FAILED else "",
    )


def _launches(run_dir: RunDir, launch: LastLaunch | None) -> int:
    """Launches so far; what a dry run has left is none."""
    begun = launch is not None or next(run_dir.attempt_logs(1).parent.glob("attempt_*/rank_*.log"), None) is not None
    return next_attempt(run_dir) - 1 if begun else 0


def _why_early(run_dir: RunDir) -> str:
    """Why a finished run has fewer updates than it might have had."""
    if read_events(run_dir, "data_end"):
        return "its data ended before its last update, as data.repeat: false says"
    return "stopped early, since its evaluations no longer got better"


def find_runs(path: Path) -> list[RunDir]:
    """The run in a folder, or those of an array in it, by name. Raises CheckpointError when there is none."""
    folder = RunDir(path.absolute())
    if folder.resolved.is_file():
        return [folder]
    runs = [RunDir(child.parent) for child in sorted(folder.path.glob("*/resolved.json"))] if folder.path.is_dir() else []
    if not runs:
        fix = "name a run folder that ftlaunch printed, or the folder of an array"
        if ScaleDir(folder.path).result.is_file():
            fix = f"it is a scaling test: its page is {path}/scale.html, the runs of its points are in {path}/points; `ftlaunch scale {path}` goes on with it"
        raise CheckpointError(f"{path} holds no run", where=str(path), fix=fix)
    return runs


def render_line(report: Report) -> str:
    """One line, for a list of runs."""
    parts = [report.state, _progress(report), f"loss {number(report.loss, '.4f')}", ", ".join(f"job {job['job']}" for job in report.jobs), report.why]
    return f"{report.run}: " + "  ".join(part for part in parts if part)


def render_report(report: Report) -> str:
    """The text of `ftlaunch status`."""
    alive = {True: "", False: " (which is gone: others of the launch still hold the folder)", None: ""}[report.launcher_alive]
    age = f", the last one {clock_time(report.last_update_age_s)} ago" if report.last_update_age_s is not None else ""
    rows = [
        ("state", report.state + (f": {report.why}" if report.why else "")),
        ("attempt", str(report.attempt) + (f", put back into the queue {report.requeues} times" if report.requeues else "")),
        ("ranks", f"{report.world_size}" + (f" on {', '.join(report.hosts)}" if report.hosts else "")),
        ("launcher", report.launcher + alive if report.launcher else ""),
        *((f"job {job['job']}", _job(job)) for job in report.jobs),
        ("scheduler", f"not asked: {report.scheduler_error}" if report.scheduler_error else ""),
        ("progress", _progress(report) + age if report.update is not None else ""),
        ("loss", number(report.loss, ".4f") if report.loss is not None else ""),
        ("speed", _speed(report)),
        ("memory", f"{gibibytes(report.peak_memory_bytes)} GiB, rank 0's peak" if report.peak_memory_bytes is not None else ""),
        ("device time", _spent(report)),
        ("time left", clock_time(report.seconds_left) if report.seconds_left is not None else ""),
        ("checkpoint", f"{report.checkpoint} (after update {report.checkpoint_update})" if report.checkpoint else "none yet"),
        ("last error", report.last_error),
    ]
    lines = [report.run, *(f"  {name:<11} {text}" for name, text in rows if text)]
    return "\n".join(lines)


def _progress(report: Report) -> str:
    return f"update {report.update}/{report.total_updates}" if report.update is not None else ""


def _speed(report: Report) -> str:
    if report.tokens_per_s is None:
        return ""
    return f"{number(report.supervised_tokens_per_s, ',.0f')} supervised tokens/s, {number(report.tokens_per_s, ',.0f')} tokens/s in this attempt"


def _spent(report: Report) -> str:
    return spent(report.device_hours, report.cost, report.currency) if report.device_hours else ""


def _job(job: dict[str, Any]) -> str:
    what = "no longer known to Slurm" if job["state"] == "GONE" else str(job["state"]).lower()
    return what + "".join(f", {text}" for text in (job["reason"], job["nodes"]) if text)


def _jobs(run_dir: RunDir) -> tuple[list[JobState], str, int]:
    """(state of each job, why there is none, requeues so far)."""
    if not is_submitted(run_dir):
        return [], "", 0
    submission = read_submission(run_dir)
    count = sum(len(requeues(run_dir, job)) for job in submission.jobs)
    try:
        jobs = ask_jobs(submission)
    except ClusterError as error:
        return [], error.problems[0].what, count
    return jobs, "", count


def _was_cancelled(run_dir: RunDir, launch: LastLaunch | None) -> bool:
    """Whether the run was cancelled and no launch has begun since."""
    try:
        when = cancelled_path(run_dir).stat().st_mtime
        return launch is None or when >= launch.started
    except OSError:
        return False


def _age(path: Path) -> float | None:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None


def _is_alive(pid: int) -> bool:
    return pid > 0 and Path(f"/proc/{pid}").is_dir()


def _last_error(run_dir: RunDir, attempt: int, host: str) -> str:
    """What the last launch failed of, in one line: by its events, else by the log of its first host, where `host` begins what the supervisor says."""
    errors = [event for event in read_events(run_dir, "error") if event.get("attempt") == attempt]
    # That a rank missed another one is a consequence.
    first = next((event for event in errors if not event.get("lost_peer")), None)
    if errors and first is None:
        return ""
    if first is not None:
        problems = first.get("problems")
        told = problems[0] if isinstance(problems, list) and problems and isinstance(problems[0], dict) else {}
        what = str(told.get("what") or str(first.get("traceback") or "").strip().rpartition("\n")[2])
        return (f"rank {first['rank']}: " if first.get("rank") is not None else "") + what.partition("\n")[0]
    # Libraries warn there as well, of what is no error.
    ends = [line for line in tail(run_dir.attempt_logs(attempt) / "node_0.log") if _AN_END.match(line) or line.startswith(host)] if attempt else []
    return ends[-1] if ends else ""
