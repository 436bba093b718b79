"""What the run's own watches found while it trained (events.jsonl), and memory that grows without an end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ftcore.spec.run_record import Line, number
from launcher.findings.finding import NOTE, SLOW, WRONG, Evidence, Finding, Knob
from launcher.findings.seen import Seen, host_of
from launcher.memory.fit import gib
from launcher.progress import clock_time

SLOW_RANK = "slow_rank"
_SEVERITY = {"spike": NOTE, "oscillation": WRONG, "divergence": WRONG, "plateau": WRONG, "memory_leak": WRONG, SLOW_RANK: SLOW}
_FEWEST = 45
"""Logged updates of a rank from which on its own peaks are looked at: those of the first updates rise in any run."""
_FIRST = _FEWEST // 3
"""Logged updates of a process that say nothing of how its peak rises."""
_RISING = 0.5
"""Share of the updates of each third in which the peak must rise: a few larger micro-steps raise it now and then, a leak nearly always."""
_LEAST_GROWTH = 2**20
"""Bytes by which the peak must have risen over all."""


def told_findings(seen: Seen) -> list[Finding]:
    """One finding for each kind that the watches told, of its first time; the others are counted."""
    kinds: dict[str, list[Line]] = {}
    for event in seen.events("finding"):
        if str(event.get("kind")) != SLOW_RANK:
            kinds.setdefault(str(event.get("kind")), []).append(event)
    return [_told(seen, kind, events) for kind, events in kinds.items()]


def _told(seen: Seen, kind: str, events: Sequence[Line]) -> Finding:
    event = events[0]
    rank = event.get("rank") if kind == "memory_leak" else None
    suspected = [each for each in event.get("causes") or () if isinstance(each, dict)]
    again = (f"{len(events)} times in all, last at update {events[-1].get('update')}",) if len(events) > 1 else ()
    left = _time_left(seen, rank) if kind == "memory_leak" else ""
    return Finding(
        kind=kind,
        severity=_SEVERITY.get(kind, NOTE),
        what=str(event.get("what") or kind),
        rank=rank if isinstance(rank, int) else None,
        host=host_of(seen, rank if isinstance(rank, int) else None),
        update=int(number(event, "update")) or None,
        time=number(event, "time") or None,
        weight=1.0 if kind == "memory_leak" else 0.5,
        details=(*again, *((left,) if left else ())),
        causes=tuple(
            f"{'likely' if each.get('suspected') else 'less likely'}: {each.get('what')}"
            for each in sorted(suspected, key=lambda each: not each.get("suspected"))
        ),
        evidence=(
            Evidence(what=f"finding {kind} at update {event.get('update')}", file="events.jsonl"),
            *_peaks(seen, rank if kind == "memory_leak" else None),
        ),
        knobs=_knobs(seen, kind),
    )


def growth_finding(seen: Seen) -> Finding | None:
    """The rank whose peak memory rises all the time, where the run's own watch has told of none; None without one."""
    if any(event.get("kind") == "memory_leak" for event in seen.events("finding")):
        return None
    rates = {rank: _rate(_peaks_of(lines)) for rank, lines in seen.record.ranks.items()}
    rank = max(rates, key=lambda each: rates[each], default=None)
    if rank is None or rates[rank] <= 0:
        return None
    left = _time_left(seen, rank)
    return Finding(
        kind="memory_leak",
        severity=WRONG,
        what=f"memory of rank {rank} grows by {rates[rank] / 2**20:.3g} MiB an update, all the time: its peak rises in most updates",
        rank=rank,
        host=host_of(seen, rank),
        weight=1.0,
        details=(left,) if left else (),
        causes=("likely: tensors or lists that the model, a callback or a collate function keeps; the run's own watch names tensors after 63 logged updates",),
        evidence=_peaks(seen, rank),
        knobs=_knobs(seen, "memory_leak"),
    )


def _peaks_of(lines: Sequence[Line]) -> list[tuple[int, int]]:
    """(update, peak) of the newest process: a peak that fell is another one's."""
    peaks = [(line["update"], line["peak_memory_bytes"]) for line in lines if isinstance(line.get("peak_memory_bytes"), int)]
    falls = [place for place in range(1, len(peaks)) if peaks[place][1] < peaks[place - 1][1]]
    return peaks[falls[-1] if falls else 0 :]


def _rate(peaks: list[tuple[int, int]]) -> float:
    """Bytes an update by which the peak of a process rises without an end; 0 where it does not."""
    if len(peaks) < _FEWEST:
        return 0.0
    peaks = peaks[_FIRST:]
    third = len(peaks) // 3
    for part in (peaks[:third], peaks[third : 2 * third], peaks[-third:]):
        rises = sum(after[1] > before[1] for before, after in itertools.pairwise(part))
        if rises < _RISING * (len(part) - 1):
            return 0.0
    growth, updates = peaks[-1][1] - peaks[0][1], peaks[-1][0] - peaks[0][0]
    return growth / updates if growth >= _LEAST_GROWTH and updates else 0.0


def _peaks(seen: Seen, rank: object) -> tuple[Evidence, ...]:
    peaks = _peaks_of(seen.record.ranks.get(rank, [])) if isinstance(rank, int) else []
    if len(peaks) < 2:
        return ()
    (first, low), (last, high) = peaks[0], peaks[-1]
    return (Evidence(what=f"peak memory {gib(low)} at update {first}, {gib(high)} at update {last}", file=f"metrics/rank_{rank}.jsonl"),)


def _time_left(seen: Seen, rank: object) -> str:
    """When what grows meets the capacity that the run was planned for."""
    capacity = (seen.record.memory or {}).get("capacity")
    room = number(capacity, "device_bytes") if isinstance(capacity, dict) else 0.0
    peaks = _peaks_of(seen.record.ranks.get(rank, []))[_FIRST:] if isinstance(rank, int) else []
    if len(peaks) < 2 or room <= 0:
        return ""
    rate = (peaks[-1][1] - peaks[0][1]) / (peaks[-1][0] - peaks[0][0])
    updates = (room - peaks[-1][1]) / rate if rate > 0 else 0.0
    if updates <= 0:
        return ""
    each_s = [number(line, "phase_seconds", number(line, "seconds")) / max(1.0, number(line, "phase_updates", 1)) for line in seen.steady()]
    when = f", in {clock_time(updates * sum(each_s) / len(each_s))}" if each_s else ""
    return f"at this rate a rank's {gib(room)} are full about {updates:,.0f} updates on{when}"


def _knobs(seen: Seen, kind: str) -> tuple[Knob, ...]:
    if seen.resolved is None:
        return ()
    spec = seen.resolved.spec
    lower = Knob(options=f"--set optimizer.learning_rate={spec.optimizer.learning_rate / 2:.3g}", gives="half as large steps")
    double = []
    if spec.batch.global_batch_size is not None:
        size = 2 * spec.batch.global_batch_size
        double = [Knob(options=f"--set batch.global_batch_size={size}", gives="less noise in an update", costs="half as many updates an epoch")]
    clip = [Knob(options="--set optimizer.max_grad_norm=1.0", gives="outliers are clipped")] if spec.optimizer.max_grad_norm <= 0 else []
    steps = (spec.checkpoint.save_steps or 100) // 2
    gives = "less is trained again when memory is full; a resume begins with empty memory"
    restarts = [Knob(options=f"--set checkpoint.save_steps={steps}", gives=gives, may_resume=True)] if steps else []
    known = {
        "spike": (*clip, lower),
        "oscillation": (lower, *double),
        "divergence": (lower, *double, *clip),
        "memory_leak": tuple(restarts),
    }
    return known.get(kind, ())
