"""How a launch ended, and the finding for it: of everything that was recorded, the one thing that the rest follows from."""

from __future__ import annotations

import dataclasses
import signal

from ftcore.spec.errors import INTERRUPT_STATUS_BASE, PREEMPTED
from ftcore.spec.run_record import Attempt, Line, number
from launcher.failure import describe_status, tail
from launcher.findings.finding import ENDED, NOTE, Evidence, Finding, Knob
from launcher.findings.going_on import resume_lines
from launcher.findings.hang import hung
from launcher.findings.nonfinite import nonfinite
from launcher.findings.out_of_memory import KILLED, told_by_kernel, told_by_rank
from launcher.findings.seen import Seen, errors_of, host_of, problem_of, problems_text, relative

_DESYNC = (
    "supervised tokens, the plan says",
    "did not score each row once",
    "mismatch between collectives",
    "Detected mismatch",
    "collective operation mismatch",
)
_FULL = ("No space left on device", "Disk quota exceeded", "quota is used up")
_STOPS = {INTERRUPT_STATUS_BASE + each: each.name for each in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)}
_KINDS = {
    "DataError": "data",
    "SpecError": "spec",
    "CheckpointError": "checkpoint",
    "ClusterError": "host",
    "DoesNotFitError": "does_not_fit",
    "TrainingError": "training",
}
_BY_STATUS = {2: "spec", 3: "host", 4: "data", 5: "checkpoint", 6: "training", 7: "does_not_fit"}
_SHOWN = 6


def ending(seen: Seen, launch: Attempt) -> Finding | None:
    """The finding of a launch's end; None for one that ended well, or still runs. An earlier launch's is a note: the run went on."""
    is_last = launch.number == seen.attempt
    if is_last and seen.is_running:
        return None
    found = _ending(seen, launch)
    if found is None or is_last:
        return found
    # How far the run has come since says nothing of where that launch was.
    update = None if found.update == seen.done + 1 else found.update
    return dataclasses.replace(found, severity=NOTE, what=f"attempt {launch.number}: {found.what}", update=update, knobs=(), go_on=(), items=())


def _ending(seen: Seen, launch: Attempt) -> Finding | None:
    ended = next(reversed(seen.events("launch_ended", launch.number)), None)
    status = int(number(ended, "status", 1)) if ended is not None else None
    if status == 0:
        return None
    if status == PREEMPTED:
        return _preempted(seen, launch)
    failure = next(reversed(seen.events("failure", launch.number)), None)
    # A rank that such a signal ended gives the launch the same status.
    if status in _STOPS and failure is None:
        return _stopped(seen, launch, _STOPS[status])
    reason = str((failure or {}).get("verb") or launch.reason)
    if "hung" in reason:
        return hung(seen, failure or ended or {}, launch.number)
    if "was lost" in reason:
        return _lost(seen, launch, failure or ended or {})
    error = next((each for each in errors_of(seen, launch.number) if not each.get("lost_peer")), None)
    if error is not None:
        return told(seen, launch, error)
    killed = next((each for each in seen.events("rank_exit", launch.number) if _was_killed(each)), None)
    if killed is not None:
        return told_by_kernel(seen, killed) if int(number(killed, "status")) == KILLED else _signalled(seen, launch, killed)
    if failure is not None or ended is not None:
        return _other(seen, launch, failure or ended or {})
    return _silent(seen, launch)


def told(seen: Seen, launch: Attempt, error: Line) -> Finding:
    """The finding for what a process of the run said of its own end."""
    problem, text = problem_of(error), problems_text(error)
    if problem["where"] == "memory" or "out of memory" in problem["what"]:
        return told_by_rank(seen, error)
    refused = nonfinite(seen, launch.number, ended=True) if "step was not taken" in text else None
    if refused is not None:
        return refused
    rank = error.get("rank") if isinstance(error.get("rank"), int) else None
    kind, causes, knobs = _sort(seen, error, text)
    file = seen.record.run_dir.rank_error(launch.number, rank) if rank is not None else seen.record.run_dir.events
    lines = text.splitlines() or [str(error.get("traceback") or "").strip().rpartition("\n")[2]]
    stack = [line.strip() for line in str(error.get("traceback") or "").splitlines() if line.strip()][-_SHOWN:]
    who = f"rank {rank}" + (f" on {host_of(seen, rank)}" if host_of(seen, rank) else "") if rank is not None else "the run"
    return Finding(
        kind=kind,
        severity=ENDED,
        what=": ".join(part for part in (who, problem["place"], problem["where"], lines[0]) if part),
        rank=rank,
        host=host_of(seen, rank),
        update=seen.at_work_on,
        time=number(error, "time") or None,
        details=tuple(lines[1:_SHOWN]) + (tuple(stack) if kind == "error" else ()),
        causes=causes,
        evidence=(Evidence(what=f"{error.get('kind') or 'an error'}, exit status {error.get('exit_status', 1)}", file=relative(seen, file)),),
        knobs=knobs,
        go_on=("mend the spec and start a new run: a run goes on as it was started",) if kind == "spec" else resume_lines(seen, knobs),
    )


def _sort(seen: Seen, error: Line, text: str) -> tuple[str, tuple[str, ...], tuple[Knob, ...]]:
    """Kind, what to look at, and what to change."""
    fix = problem_of(error)["fix"]
    if any(words in text for words in _FULL):
        fewer = Knob(options="--set checkpoint.save_total_limit=1", gives="one checkpoint is kept", may_resume=True)
        return "disk_full", (fix or "free some space on its disk",), (fewer,)
    if any(words in f"{text}\n{error.get('traceback')}" for words in _DESYNC):
        return "desync", (fix, "the ranks did not do the same work: versions or data that differ between hosts (`ftlaunch doctor --hosts RUN/hostfile`)"), ()
    if "not finite" in text:
        return "nan", (fix,) if fix else (), ()
    kind = _KINDS.get(str(error.get("kind")), "error")
    if kind == "data":
        listed = sorted(path.name for path in seen.record.run_dir.bad_rows.glob("*")) if seen.record.run_dir.bad_rows.is_dir() else []
        causes = (fix, *(f"all of its rows with mistakes: bad_rows/{name}" for name in listed[:3]))
        return (
            kind,
            tuple(each for each in causes if each),
            (Knob(options="--set data.on_bad_row=drop", gives="rows that can't be used are counted and left out", may_resume=True),),
        )
    if kind == "error":
        fix = fix or "a bug of ftlaunch or of a library below it: please report it with the log"
    return kind, (fix,) if fix else (), ()


def _preempted(seen: Seen, launch: Attempt) -> Finding:
    saved = next(reversed(seen.events("preempted", launch.number)), None)
    update = int(number(saved, "update")) if saved is not None else None
    what = f"preempted and saved after update {update}" if update else _unsaved(seen, launch)
    return Finding(
        kind="preempted",
        severity=NOTE,
        what=f"{what}: {launch.reason}" if launch.reason else what,
        update=update,
        time=launch.ended,
        evidence=(Evidence(what=f"exit status {PREEMPTED}", file="events.jsonl"),),
        go_on=resume_lines(seen),
    )


def _unsaved(seen: Seen, launch: Attempt) -> str:
    """What a preemption that saved nothing found: before the first update or after the last one there is nothing that is not saved."""
    kept = max((number(event, "update") for name in ("checkpoint", "resumed") for event in seen.events(name, launch.number)), default=0)
    return f"preempted, with nothing to save that is not in the checkpoint of update {kept:.0f}" if kept else "preempted before there was anything to save"


def _stopped(seen: Seen, launch: Attempt, name: str) -> Finding:
    return Finding(
        kind="stopped",
        severity=NOTE,
        what=f"stopped by {name}; nothing failed: {launch.reason}".removesuffix(": "),
        time=launch.ended,
        evidence=(Evidence(what="launch_ended", file="events.jsonl"),),
        go_on=resume_lines(seen),
    )


def _lost(seen: Seen, launch: Attempt, failure: Line) -> Finding:
    details = tuple(map(str, failure.get("details") or ()))
    who = str(failure.get("who") or launch.reason.partition(" was lost")[0])
    return Finding(
        kind="host_lost",
        severity=ENDED,
        what=f"{who} was lost" + (f": {details[0]}" if details else ""),
        host=who.removeprefix("host "),
        update=seen.at_work_on,
        time=number(failure, "time") or launch.ended,
        details=details[1:],
        causes=(
            "the host, its network or its ssh server is down, or the scheduler took it back",
            f"is it up? `ssh {who.removeprefix('host ')} uptime`; `ftlaunch doctor --hosts RUN/hostfile`",
        ),
        evidence=(Evidence(what=launch.reason or "launch_ended", file="events.jsonl"),),
        knobs=(
            Knob(options="--max-restarts 3", gives="goes on by itself once the host is back", may_resume=True),
            Knob(
                options="--max-restarts 3 --elastic",
                gives="goes on without the host, with the same samples in an update",
                costs="fewer ranks: slower",
                may_resume=True,
            ),
        ),
        go_on=resume_lines(seen),
    )


def _signalled(seen: Seen, launch: Attempt, exited: Line) -> Finding:
    rank, status = exited.get("rank"), int(number(exited, "status"))
    log = seen.record.run_dir.rank_log(launch.number, rank) if isinstance(rank, int) else seen.record.run_dir.events
    native = status - INTERRUPT_STATUS_BASE in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
    causes = (
        ("a crash in native code: the log has the Python stack", "SIGBUS: /dev/shm or the disk of a mapped file is full")
        if native
        else ("somebody, or a scheduler, sent the signal",)
    )
    return Finding(
        kind="crash" if native else "killed",
        severity=ENDED,
        what=f"rank {rank} on {exited.get('host')} was {describe_status(status)}",
        rank=rank if isinstance(rank, int) else None,
        host=str(exited.get("host") or ""),
        update=seen.at_work_on,
        time=number(exited, "time") or None,
        details=tuple(tail(log, _SHOWN)),
        causes=causes,
        evidence=(Evidence(what=f"rank_exit, status {status}", file="events.jsonl"), Evidence(what="its last lines", file=relative(seen, log))),
        go_on=resume_lines(seen),
    )


def _other(seen: Seen, launch: Attempt, failure: Line) -> Finding:
    details = tuple(map(str, failure.get("details") or ()))
    who = f"{failure.get('who')} {failure.get('verb')}" if failure.get("who") else launch.reason or "it failed"
    log = str(failure.get("log") or "")
    status = int(number(failure, "status", 1))
    return Finding(
        kind="left" if "left before" in who else _BY_STATUS.get(status, "error"),
        severity=ENDED,
        what=who,
        time=number(failure, "time") or launch.ended,
        details=details,
        causes=tuple(map(str, failure.get("hints") or ())),
        evidence=(Evidence(what=launch.reason or who, file=log or "events.jsonl"),),
        go_on=resume_lines(seen),
    )


def _silent(seen: Seen, launch: Attempt) -> Finding | None:
    if not seen.events("launch_started", launch.number):
        return _unrecorded(seen, launch)
    cause = "a reboot or a power loss (`last -x`), the kernel's out-of-memory killer (`dmesg -T`), or a scheduler's SIGKILL"
    what = "the launch ended without a word: its launcher was killed, or its host went down"
    return _launcher_lost(seen, launch, what, cause, "launch_started, and no launch_ended")


def _unrecorded(seen: Seen, launch: Attempt) -> Finding | None:
    """Of a launch that only its updates tell of: its node script was started by hand, or its events are lost. Nothing is known of one that others followed."""
    if seen.is_trained or launch.number != seen.attempt:
        return None
    what = "how the run ended is not recorded: its script was started by hand, or events.jsonl is damaged"
    cause = "what the ranks printed last is in their logs (`ftlaunch logs`)"
    return _launcher_lost(seen, launch, what, cause, "no launch_started of its launch, and updates that are not done")


def _launcher_lost(seen: Seen, launch: Attempt, what: str, cause: str, evidence: str) -> Finding:
    return Finding(
        kind="launcher_lost",
        severity=ENDED,
        what=what,
        time=launch.started + launch.wall_s if launch.started else None,
        causes=(cause,),
        evidence=(Evidence(what=evidence, file="events.jsonl"),),
        go_on=resume_lines(seen),
    )


def _was_killed(exited: Line) -> bool:
    return int(number(exited, "status")) > INTERRUPT_STATUS_BASE and not exited.get("ended_by_launcher")
