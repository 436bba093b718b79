"""Memory that ran out: told by a rank, or by the kernel that killed one."""

from __future__ import annotations

import dataclasses
import signal
from typing import Any

from ftcore.spec.errors import INTERRUPT_STATUS_BASE
from ftcore.spec.run_record import Line, number
from launcher.findings.finding import ENDED, Evidence, Finding
from launcher.findings.going_on import resume_lines
from launcher.findings.ledger_items import growth_text, item_changes, ledger_at, measured_evidence
from launcher.findings.memory_knobs import Shortage, memory_knobs, shorter_samples
from launcher.findings.micro_steps import described, memory_facts, row_of_error, samples_in, widest_row
from launcher.findings.seen import Seen, host_of, problem_of, problems_text, relative, update_named
from launcher.memory.fit import gib

KILLED = INTERRUPT_STATUS_BASE + signal.SIGKILL
_NUMBERS = (
    ("asked_bytes", "asked for"),
    ("resident_bytes", "held by the process"),
    ("allocated_bytes", "allocated on the accelerator"),
    ("reserved_bytes", "reserved by its allocator"),
    ("device_bytes", "there on the accelerator"),
    ("limit_bytes", "the limit"),
    ("available_bytes", "free on the host"),
)
_FRAGMENTED = 0.15
"""Share of what is reserved that is not allocated, from which on the allocator's pieces are too small."""


def told_by_rank(seen: Seen, error: Line) -> Finding:
    """The finding of a rank that said that memory ran out."""
    text, rank = problems_text(error), error.get("rank")
    facts, row = memory_facts(error), row_of_error(seen, error, text)
    update = update_named(text) if "tried before its first update" not in text else None
    file = seen.record.run_dir.rank_error(int(error["attempt"]), rank) if isinstance(rank, int) else seen.record.run_dir.events
    told = [Evidence(what=problem_of(error)["what"], file=relative(seen, file))]
    numbers = ", ".join(f"{gib(number(facts, name))} {words}" for name, words in _NUMBERS if name in facts)
    told += [Evidence(what=numbers, file=relative(seen, file))] if numbers else []
    details = []
    if row is not None:
        details.append(f"the micro-step: {described(row)}")
    if samples_in(text):
        details.append(f"the update's samples, the longest first: {', '.join(map(str, samples_in(text)[:6]))} tokens")
    if "tried before its first update" in text:
        details.append("it was the heaviest micro-step of the whole run, tried before the first update: nothing was lost by it")
    details += _fragmented(facts)
    phase = str(facts.get("phase") or "")
    asked = f" as {gib(facts['asked_bytes'])} were asked for" if facts.get("asked_bytes") else ""
    where = " ".join(part for part in (f"in update {update}" if update else "", f"({phase})" if phase else "") if part)
    finding = Finding(
        kind="out_of_memory",
        severity=ENDED,
        what=f"{_who(seen, rank)} ran out of memory{asked}{' ' + where if where else ''}",
        rank=rank if isinstance(rank, int) else None,
        host=host_of(seen, rank if isinstance(rank, int) else None),
        update=update,
        phase=phase,
        time=number(error, "time") or None,
        details=tuple(details),
        evidence=tuple(told),
    )
    return _with_ledger(seen, finding, Shortage(row=row, bytes=_short(facts)))


def told_by_kernel(seen: Seen, exited: Line) -> Finding:
    """The finding of a rank that SIGKILL ended: by the kernel's out-of-memory killer, as far as the host's numbers tell, or by somebody."""
    rank = exited.get("rank")
    held, free, kills = (int(number(exited, name)) for name in ("resident_bytes", "available_bytes", "oom_kills"))
    names = (("resident_bytes", "it held up to"), ("limit_bytes", "its control group may hold"), ("available_bytes", "the host had left"))
    numbers = ", ".join(f"{words} {gib(number(exited, name))}" for name, words in names if name in exited)
    evidence = (Evidence(what=f"exit status {KILLED} (SIGKILL)" + (f"; {numbers}" if numbers else ""), file="events.jsonl"),)
    finding = Finding(
        kind="killed",
        severity=ENDED,
        what="",
        rank=rank if isinstance(rank, int) else None,
        host=str(exited.get("host") or ""),
        update=seen.at_work_on,
        time=number(exited, "time") or None,
        evidence=evidence,
    )
    who = f"rank {rank} on {finding.host}"
    if not kills and free > 2 * held > 0:
        what = f"{who} was killed by SIGKILL, and memory was not short: a person or a scheduler did it"
        look = "`dmesg -T` on its host says whether the kernel did it after all"
        return dataclasses.replace(finding, what=what, details=(look,), go_on=resume_lines(seen))
    sure = "was killed by the kernel's out-of-memory killer" if kills else "was killed by SIGKILL, as the kernel does when memory runs out"
    more = (
        (f"the kernel counted {kills} kill{'s' if kills > 1 else ''} for memory in the control group of the run",)
        if kills
        else ("`dmesg -T` on its host says so",)
    )
    fewer = (f"fewer ranks on {finding.host}: each has a process of its own there",) if seen.on_cpu and seen.resolved and seen.resolved.world_size > 1 else ()
    finding = dataclasses.replace(finding, kind="killed_for_memory", what=f"{who} {sure}", details=(*more, *fewer))
    return _with_ledger(seen, finding, Shortage(row=None, bytes=None))


def _with_ledger(seen: Seen, finding: Finding, short: Shortage) -> Finding:
    """The finding with the ledger's items, the knobs, and how to go on."""
    row = short.row or (widest_row(seen, seen.resolved) if seen.resolved is not None and seen.shape is not None else None)
    items, knobs = item_changes(seen, short.row), memory_knobs(seen, short)
    more = [growth_text(items)] if items else []
    if short.row is None and row is not None:
        more.append(f"which micro-step it was is not recorded: counted is the largest that the spec allows, {described(row)}")
    if short.bytes is not None:
        more.append(f"short of {gib(short.bytes)}, by what was asked for and what was left")
    if seen.resolved is not None and (shorter := shorter_samples(seen, seen.resolved)):
        more.append(shorter)
    if knobs and all(knob.is_enough is False for knob in knobs):
        more.append("no knob is enough by itself: take several, or see `ftlaunch plan RUN/spec.yaml --recommend`")
    return dataclasses.replace(
        finding,
        details=(*finding.details, *more),
        evidence=(*finding.evidence, *measured_evidence(seen, finding.rank, ledger_at(seen, row))),
        items=items,
        knobs=knobs,
        go_on=resume_lines(seen, knobs, needs_change=True),
    )


def _short(facts: dict[str, Any]) -> int | None:
    """Bytes that were missing; None where the numbers don't say."""
    asked = int(number(facts, "asked_bytes"))
    if not asked:
        return None
    rooms = [int(number(facts, "available_bytes"))] if "available_bytes" in facts and "device_bytes" not in facts else []
    if "limit_bytes" in facts and "resident_bytes" in facts:
        rooms.append(max(0, int(facts["limit_bytes"]) - int(facts["resident_bytes"])))
    if "device_bytes" in facts:
        rooms.append(max(0, int(facts["device_bytes"]) - int(number(facts, "reserved_bytes"))))
    return max(0, asked - min(rooms)) or None if rooms else None


def _fragmented(facts: dict[str, Any]) -> list[str]:
    reserved, allocated = number(facts, "reserved_bytes"), number(facts, "allocated_bytes")
    if reserved <= 0 or (reserved - allocated) / reserved < _FRAGMENTED:
        return []
    what = f"{gib(reserved - allocated)} of what the allocator has reserved was in pieces too small to use"
    return [f"{what}: --set cluster.environment.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True costs nothing"]


def _who(seen: Seen, rank: object) -> str:
    host = host_of(seen, rank) if isinstance(rank, int) else ""
    return f"rank {rank}" + (f" on {host}" if host else "") if isinstance(rank, int) else "a process of the run"
