"""A run that made no progress: which rank the others wait for, and where it stood."""

from __future__ import annotations

from collections.abc import Sequence

from ftcore.spec.run_record import Line, number
from launcher.findings.finding import ENDED, Evidence, Finding, Knob
from launcher.findings.going_on import resume_lines
from launcher.findings.seen import Seen, host_of, relative
from launcher.findings.stacks import Stack, odd_ones, read_stacks

SOONER_S = 300
"""Seconds: a watchdog that waits longer than this may be set to it."""
_SHOWN = 16
"""Ranks whose places are listed one by one."""


def hung(seen: Seen, failure: Line, attempt: int) -> Finding:
    """The finding of a launch that the watchdog ended; `failure` is its event, or the event of its end where an earlier version wrote no other."""
    folder = seen.record.run_dir.attempt_logs(attempt) / "stacks"
    stacks = list(read_stacks(folder).values())
    odd = odd_ones(stacks)
    limits = seen.resolved.spec.cluster if seen.resolved is not None else None
    is_start = "begun to work" in " ".join(map(str, failure.get("details") or ()))
    seconds = None if limits is None else limits.start_timeout if is_start else limits.stall_timeout
    first = odd[0] if odd else None
    details = [_place(seen, each, failure, is_odd=each in odd) for each in sorted(stacks, key=lambda each: (each not in odd, each.rank))[:_SHOWN]]
    more = [f"and {len(stacks) - _SHOWN} more ranks"] if len(stacks) > _SHOWN else []
    evidence = [
        Evidence(what=f"{each.state}; {each.called}" if each.frames and each.state else each.called, file=relative(seen, folder / f"rank_{each.rank}.txt"))
        for each in odd[:4]
    ]
    evidence += [Evidence(what=f"the watchdog's limit: {seconds:g} s without progress", file="resolved.json")] if seconds is not None else []
    return Finding(
        kind="hang",
        severity=ENDED,
        what=f"the run hung{f' for {seconds:g} s' if seconds else ''}: {_said(seen, odd, stacks)}",
        rank=first.rank if first is not None and len(odd) == 1 else None,
        host=host_of(seen, first.rank) if first is not None and len(odd) == 1 else "",
        update=None if seen.is_trained else seen.done + 1,
        phase="load" if is_start else "train",
        time=number(failure, "time") or None,
        details=(*details, *more),
        causes=_causes(odd, stacks, is_start=is_start),
        evidence=tuple(evidence),
        knobs=_knobs(seconds or 0.0, is_start=is_start),
        go_on=resume_lines(seen),
    )


def _said(seen: Seen, odd: Sequence[Stack], stacks: Sequence[Stack]) -> str:
    if not stacks:
        return "no rank's stack could be had"
    if not odd:
        where = stacks[0].called
        return f"all {len(stacks)} ranks were {where}" if len(stacks) > 1 else f"its rank was {where}"
    names = ", ".join(f"rank {each.rank}" + (f" on {host}" if (host := host_of(seen, each.rank)) else "") for each in odd[:4])
    if len(odd) == len(stacks) and len(odd) > 1:
        return f"the ranks were in different places, out of step: {names}"
    waits = [each for each in stacks if each not in odd]
    others = f"; the other{'s wait' if len(waits) > 1 else ' waits'} for it {waits[0].called}" if waits and len(odd) == 1 else ""
    stopped = " was stopped by a signal" if odd[0].is_stopped else f" was {odd[0].called}"
    return f"{names}{stopped}{others}"


def _place(seen: Seen, stack: Stack, failure: Line, *, is_odd: bool) -> str:
    host, last = host_of(seen, stack.rank), (failure.get("last_progress") or {}).get(str(stack.rank), "")
    word = "  <- the odd one out" if is_odd else ""
    where = f"{stack.called}" if stack.frames else stack.state or "no stack"
    return f"rank {stack.rank}{f' on {host}' if host else ''}: {where}{f'; last progress: {last}' if last else ''}{word}"


def _causes(odd: Sequence[Stack], stacks: Sequence[Stack], *, is_start: bool) -> tuple[str, ...]:
    if is_start:
        return (
            "a rank that still imports is slow, or waits for a disk or for another host",
            "a rank that waits in init_process_group can't reach the first host",
        )
    if any(each.is_stopped for each in odd):
        return ("somebody stopped the process (SIGSTOP, Ctrl-Z, a debugger): `kill -CONT PID` on its host would have let it go on",)
    if any(each.in_disk_wait for each in odd):
        return ("its process waited in the kernel for a file system that does not answer: look at the mounts of its host, and at `dmesg -T`",)
    if odd and len(odd) < len(stacks):
        inner = odd[0].called
        return (
            f"that rank never came to the collective in which the others wait: it was {inner}",
            "reading data or a file system, a lock, or a long computation",
        )
    if odd:
        return (
            "the ranks did not call the same collectives in the same order: a desync, and a bug of ftlaunch or of a library below it",
            "please report it with the stacks",
        )
    if stacks and all(each.collective for each in stacks):
        return (
            "every rank was in the same collective: the network between the hosts lost it, or is very slow",
            "`ftlaunch doctor --hosts RUN/hostfile --all-reduce` tries it",
        )
    return ("the stacks do not say",)


def _knobs(limit_s: float, *, is_start: bool) -> tuple[Knob, ...]:
    if is_start:
        longer = Knob(options=f"--set cluster.start_timeout={2 * limit_s or 1800:g}", gives="more time until every rank has begun", may_resume=True)
        return (longer,)
    again = Knob(
        options="--max-restarts 3", gives="goes on by itself after a hang, from the newest checkpoint", costs="what was trained since then", may_resume=True
    )
    if limit_s <= SOONER_S:
        return (again,)
    costs = "no update, save or evaluation may show no progress for longer"
    sooner = Knob(options=f"--set cluster.stall_timeout={SOONER_S}", gives="a hang is noticed sooner", costs=costs, may_resume=True)
    return (again, sooner)
