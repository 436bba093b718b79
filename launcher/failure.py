"""Finds out which process failed first, and says so: who, why, its last lines, its log, and what to do."""

from __future__ import annotations

import json
import re
import shlex
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.errors import INTERRUPT_STATUS_BASE, PREEMPTED, FtError, SpecError, error_from_dict
from ftcore.spec.lost_peer import names_a_lost_peer
from ftcore.spec.run_dir import RunDir
from launcher.children import Event
from launcher.processes import PREEMPTING
from launcher.record import Record
from launcher.run_folder import has_checkpoints, newest_checkpoint, shown, update_of

NO_SIGNAL = 0
TAIL_LINES = 15
"""Last lines of a traceback or a log that are shown."""

_TAIL_BYTES = 65536
_BAR = re.compile(r"\d+%\|")
"""A bar as tqdm draws it."""
_TO_DO = "  to do: "


class RunFailedError(FtError):
    """A process of the run failed; the text is the whole report, the status that process's own."""

    def __init__(self, report: str, status: int, *, is_infrastructure: bool = False) -> None:
        super().__init__(report)
        self.brief = "\n".join(line for line in report.splitlines() if not line.startswith(_TO_DO))
        """The report without what to do, for a run that goes on by itself."""
        self.exit_status = status
        self.is_infrastructure = is_infrastructure
        """A machine failed, not what was computed: the run may go on by itself."""


class RunStoppedError(FtError):
    """The run was ended by a signal. The status is 75 where it may be put back into a queue as it is, else 128 plus the signal's number."""

    def __init__(self, signum: int, advice: str, *, late_s: float = 0.0, lost: bool = False, saved: bool = False) -> None:
        """`signum`: NO_SIGNAL where only a rank got one. `late_s`: the seconds in which a preempted run did not manage to save.

        `lost`: it ended without having saved what it had trained; `saved`: it had.
        """
        name = signal.Signals(signum).name if signum else "a signal to one of its ranks"
        done = f"stopped by {name}"
        if late_s:
            done = f"stopped by {name}, and ended before it had saved in {late_s:g} s (cluster.preempt_grace)"
        elif lost:
            done = f"stopped by {name}, and ended before it had saved"
        elif signum in (NO_SIGNAL, *PREEMPTING):
            done = f"preempted by {name}" + (": what was trained is saved" if saved else "")
        super().__init__(f"{done}; to go on: {advice}")
        self.exit_status = PREEMPTED if signum in (NO_SIGNAL, *PREEMPTING) and not (late_s or lost) else INTERRUPT_STATUS_BASE + signum


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One process that ended badly."""

    who: str
    verb: str = "failed"
    status: int
    log: Path
    time: float
    """When the launcher heard of it, on its own monotonic clock: hosts' clocks differ."""
    error: Event | None = None
    """What it said itself."""
    lost_peer: bool = False
    """Whether it failed only because another process had gone."""
    details: tuple[str, ...] = ()
    """What is known of it in place of its own words."""
    hints: tuple[str, ...] = ()
    """What to do about it."""
    is_infrastructure: bool = False
    """A machine failed, not what was computed."""


def first_rank_failure(record: Record, run_dir: RunDir, attempt: int) -> Failure | None:
    """The failure that the others follow from: the earliest one that is more than a lost connection. None when no rank failed by itself."""
    said = {event["rank"]: event for event in reversed(record.errors) if event.get("rank") is not None}
    exits = {event["rank"]: event for event in record.rank_exits if event["status"] not in (0, PREEMPTED)}
    failures = []
    for rank in sorted(said.keys() | exits.keys()):
        error, exited = said.get(rank), exits.get(rank)
        if error is None and exited is not None and exited.get("ended_by_launcher"):
            continue
        seen = [event for event in (error, exited) if event is not None]
        log = run_dir.rank_log(attempt, rank)
        lost_peer = bool(error.get("lost_peer")) if error is not None else names_a_lost_peer("\n".join(tail(log)))
        killed = error is None and int(seen[0]["status"]) > INTERRUPT_STATUS_BASE
        failures.append(
            Failure(
                who=f"rank {rank} on {(exited or seen[0]).get('host')}",
                status=int(error.get("exit_status", 1)) if error is not None else int(seen[0]["status"]),
                log=log,
                time=min(event["heard"] for event in seen),
                error=_whole(error, run_dir.rank_error(attempt, rank)),
                lost_peer=lost_peer,
                hints=memory_hints(exited) if killed and exited is not None else (),
                is_infrastructure=(killed and not exited_for_memory(exited)) or lost_peer,
            )
        )
    return min(failures, key=lambda failure: (failure.lost_peer, failure.time), default=None)


def step_failure(who: str, returncode_status: int, record: Record, log: Path) -> Failure:
    """The failure of a process that is no rank: preparation, export, or a node's supervisor."""
    error = next((event for event in record.errors if event.get("rank") is None), None)
    status = int(error.get("exit_status", 1)) if error is not None else returncode_status
    return Failure(who=who, status=status, log=log, time=0.0, error=error)


def as_error(failure: Failure, advice: str) -> FtError:
    """What to raise: the process's own FtError when a user's mistake stopped a process that is no rank, else a report."""
    error = failure.error
    if error is not None and error.get("rank") is None and not error.get("traceback") and "problems" in error:
        known = error_from_dict({"kind": error["kind"], "problems": error["problems"]})
        if known.exit_status == failure.status:
            return known
    return RunFailedError(render_failure(failure, advice), failure.status, is_infrastructure=failure.is_infrastructure)


def render_failure(failure: Failure, advice: str) -> str:
    """The report of a failed run; `advice` says how to go on."""
    error = failure.error or {}
    lines = [f"{failure.who} {failure.verb}: {describe_status(failure.status)}", *_indented(list(failure.details))]
    if "problems" in error:
        lines += _indented(str(error_from_dict({"kind": error["kind"], "problems": error["problems"]})).splitlines())
    last_lines = str(error.get("traceback") or "").splitlines()[-TAIL_LINES:]
    if last_lines:
        lines += ["  last lines of its traceback:", *_indented(last_lines)]
    elif "problems" not in error and not failure.details:
        lines += ["  last lines of its log:", *_indented(tail(failure.log) or ["(it wrote nothing)"])]
    lines.append(f"  its log: {shown(failure.log)}")
    if failure.error is not None and failure.error.get("kind") == SpecError.__name__:
        # A run goes on as it was started, with the same mistake.
        advice = "mend the spec and start a new run"
    lines += [f"{_TO_DO}{text}" for text in (*_hints(failure), advice)]
    return "\n".join(lines)


def failure_event(failure: Failure, run_dir: RunDir, last_progress: Mapping[int, str]) -> Event:
    """What events.jsonl holds of the first failure; `last_progress` says where each rank had last made progress, of a run that hung."""
    log = failure.log.relative_to(run_dir.path) if failure.log.is_relative_to(run_dir.path) else failure.log
    said = {name: list(getattr(failure, name)) for name in ("details", "hints")}
    places = {"last_progress": {str(rank): place for rank, place in last_progress.items()}} if last_progress else {}
    return {"event": "failure", "time": time.time(), "who": failure.who, "verb": failure.verb, "status": failure.status, "log": str(log), **said, **places}


def with_doctor(failure: RunFailedError, run_dir: RunDir, *, is_written: bool) -> RunFailedError:
    """The same report with a last line on who says more; `is_written`: it stands in RUN/findings.txt already."""
    written = f"   (also in {shown(run_dir.path)}/findings.txt)" if is_written else ""
    report = f"{failure}\n{_TO_DO}ftlaunch doctor {shlex.quote(shown(run_dir.path))}{written}"
    return RunFailedError(report, failure.exit_status, is_infrastructure=failure.is_infrastructure)


def describe_status(status: int) -> str:
    """An exit status in words."""
    if status > INTERRUPT_STATUS_BASE:
        number = status - INTERRUPT_STATUS_BASE
        names = {each.value: each.name for each in signal.Signals}
        return f"killed by {names.get(number, f'signal {number}')} (exit status {status})"
    return f"exit status {status}"


def first_line(error: FtError) -> str:
    """What an error says first."""
    return str(error).partition("\n")[0]


def resume_command(run_dir: RunDir, env_file: str) -> str:
    """What a user types to go on with a run that was launched with `env_file` (empty: none)."""
    again = f" --env-file {shlex.quote(env_file)}" if env_file else ""
    return f"ftlaunch --resume {shlex.quote(shown(run_dir.path))}{again}"


def resume_advice(run_dir: RunDir, resume_command: str) -> str:
    """How to go on with a run that was stopped."""
    checkpoint = newest_checkpoint(run_dir)
    if checkpoint is not None:
        return f"{resume_command}   (goes on after update {update_of(checkpoint)})"
    if has_checkpoints(run_dir):
        return f"every checkpoint is damaged: a resume will refuse; ftlaunch checkpoints verify {shlex.quote(shown(run_dir.path))} says what is wrong"
    return f"{resume_command}   (no checkpoint yet: begins at the first update)"


def tail(log: Path, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a log, without what progress bars left; none when there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    written = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return ([line for line in written if not _BAR.search(line)] or written)[-lines:]


def exited_for_memory(exited: Event | None) -> bool:
    """Whether the kernel counts a process killed for memory where this rank was killed."""
    return exited is not None and int(exited.get("oom_kills", 0)) > 0


def memory_hints(exited: Event) -> tuple[str, ...]:
    """What a rank's end by SIGKILL says of memory, with the numbers that its host saw; empty for another signal."""
    if exited["status"] != INTERRUPT_STATUS_BASE + signal.SIGKILL:
        return ()
    numbers = [
        f"{text} {_gib(exited[name])}"
        for name, text in (("resident_bytes", "it held up to"), ("limit_bytes", "its control group may hold"), ("available_bytes", "the host has left"))
        if name in exited
    ]
    seen = f" ({', '.join(numbers)})" if numbers else ""
    fix = "lower batch.micro_batch_tokens, raise zero.stage, or use fewer ranks on a host"
    if exited_for_memory(exited):
        return (f"out of memory: the kernel killed it{seen}: {fix}",)
    if int(exited.get("available_bytes", 0)) > 2 * int(exited.get("resident_bytes", 0)) > 0:
        # What it held is free again, and still most of what is free was free before.
        return (f"by these numbers memory was not short{seen}: a person, or a scheduler, killed it; dmesg on its host says if the kernel did",)
    return (f"the kernel kills so when memory runs out (dmesg says so){seen}: {fix}",)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _hints(failure: Failure) -> list[str]:
    hints = list(failure.hints)
    if failure.status == 1 and failure.error is not None and failure.error.get("traceback"):
        hints.append("this is a bug of ftlaunch or of a library below it: please report it with the log")
    return hints


def _whole(error: Event | None, file: Path) -> Event | None:
    """The error as its rank wrote it, when the event had to be cut short."""
    if error is None or not error.get("truncated"):
        return error
    try:
        return {**error, **json.loads(file.read_text(encoding="utf-8"))}
    except (OSError, ValueError):
        return error


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
