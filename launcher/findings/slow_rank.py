"""A rank that the others wait for: which one, in which phase, and whether its device, its data or what it was dealt is the cause."""

from __future__ import annotations

from ftcore.spec.run_record import Line, number
from ftcore.spec.sections import DataSection
from launcher.findings.finding import SLOW, Evidence, Finding, Knob
from launcher.findings.seen import Seen, host_of
from launcher.findings.shares import Lateness, Shares, evidence, lateness

IDLE = 0.08
"""Share of the time that ranks wait for others from which on it is told of."""
SURE, OFTEN, LEAST_LINES = 0.15, 0.8, 10
"""Wait for one rank, share of the updates in which it is the one that is waited for most, and updates, from which on it is named though the run's own watch,
which weighs more, told of nobody. OFTEN is also the share of all waiting that is for a rank, from which on it is told whom the others waited for."""
UNEVEN = 1.10
"""Times the ranks' mean cost from which on a rank was dealt more than the others."""


def waiting(seen: Seen, found: Shares) -> Finding | None:
    """A rank that the others wait for in the newest attempt that trained: as the run's own watch told, or as the ranks' lines say."""
    newest = seen.trained
    told = [event for event in seen.events("finding") if event.get("kind") == "slow_rank" and event.get("attempt", newest) == newest]
    late = lateness(seen)
    if not told and not (late and stands_out(seen, late[0])):
        return _idle(seen, found, late)
    event = told[-1] if told else {}
    worst = next((each for each in late if each.rank == event.get("rank")), late[0] if late and not told else None)
    rank = event.get("rank") if isinstance(event.get("rank"), int) else worst.rank if worst is not None else None
    host, phase = str(event.get("host") or host_of(seen, rank)), str(event.get("phase") or (worst.late_phase if worst is not None else ""))
    share = max(number(event, "share"), worst.idle_share if worst is not None else 0.0)
    cause = str(event.get("cause") or _cause(worst, phase))
    said = (Evidence(what=str(event.get("what") or "finding slow_rank"), file="events.jsonl"),) if told else ()
    late_in = f" in {phase}" if phase else ""
    measured = (Evidence(what=_measured(worst), file=f"metrics/rank_{worst.rank}.jsonl"),) if worst is not None else ()
    return Finding(
        kind="slow_rank",
        severity=SLOW,
        what=f"the other ranks wait {share:.0%} of the time for rank {rank} on {host or '?'}, which is late{late_in}: {_CAUSES.get(cause, cause)}",
        rank=rank,
        host=host,
        phase=phase,
        update=int(number(event, "update")) or None,
        weight=share,
        details=(f"told {len(told)} times, first at update {told[0].get('update')}",) if len(told) > 1 else (),
        causes=(*_told_causes(event), *_advice(cause, host)),
        evidence=(*said, *measured),
        knobs=_rank_knobs(seen, cause, host),
    )


def stands_out(seen: Seen, worst: Lateness) -> bool:
    """Whether a rank is the late one nearly always, by much, and not where the first rank has more to do than others: at checkpoints and evaluations."""
    if worst.idle_share < SURE or worst.late_phase in ("", "checkpoint", "evaluation"):
        return False
    caused: dict[int, dict[int, float]] = {}
    for rank in seen.record.ranks:
        for line in seen.steady_of(rank):
            caused.setdefault(line["update"], {})[rank] = number(line, "caused_idle_seconds")
    first = sum(max(each, key=lambda rank: each[rank]) == worst.rank for each in caused.values())
    return len(caused) >= LEAST_LINES and first >= OFTEN * len(caused)


_CAUSES = {
    "device": "its device or host is slower than the others",
    "data": "it was dealt more tokens than the others",
    "data_wait": "it waits for its data",
    "checkpoint": "its part of a checkpoint takes longer",
    "evaluation": "its share of the evaluation takes longer",
    "process": "it is held up outside of the model",
}


def _cause(worst: Lateness | None, phase: str) -> str:
    if phase == "data_wait":
        return "data_wait"
    return "data" if worst is not None and worst.cost_share >= UNEVEN and worst.compute_share <= UNEVEN * worst.cost_share else "device"


def _measured(worst: Lateness) -> str:
    dealt = f"; dealt {worst.cost_share:.2f} times the ranks' mean cost" if worst.cost_share else ""
    computed = f", computed for {worst.compute_share:.2f} times their mean time" if worst.compute_share else ""
    return f"another rank waits {worst.idle_share:.1%} of its time for it{dealt}{computed}"


def _told_causes(event: Line) -> tuple[str, ...]:
    causes = event.get("causes")
    return tuple(str(each.get("what")) for each in causes if isinstance(each, dict)) if isinstance(causes, list) else ()


def _advice(cause: str, host: str) -> tuple[str, ...]:
    if cause == "data":
        return ("updates of few samples, or samples of very different lengths, can't be dealt evenly",)
    if cause == "data_wait":
        return (f"the disk or network of {host or 'its host'} is slower, or its cores are busy",)
    return (
        f"another process on {host or 'its host'} (`nvidia-smi`, `top`), a throttled or broken device, fewer cores for this rank",
        "`ftlaunch profile` shows what it does",
    )


def _rank_knobs(seen: Seen, cause: str, host: str) -> tuple[Knob, ...]:
    if cause == "data":
        return _larger_update(seen)
    if seen.resolved is None:
        return ()
    if cause == "data_wait":
        return (more_ahead(seen.resolved.spec.data),)
    named = next((each.name for each in seen.resolved.hosts if each.name == host), None)
    if named is None or len(seen.resolved.hosts) < 2:
        return ()
    return (Knob(options=f"--exclude {named}", gives="goes on without the slow host", costs="fewer ranks", may_resume=True),)


def more_ahead(data: DataSection) -> Knob:
    """Twice as many updates collated ahead."""
    ahead = 2 * max(1, data.prefetch_updates)
    return Knob(options=f"--set data.prefetch_updates={ahead}", gives="more updates are made ready ahead", costs="host memory", may_resume=True)


def _larger_update(seen: Seen) -> tuple[Knob, ...]:
    if seen.resolved is None:
        return ()
    batch, gives, costs = seen.resolved.spec.batch, "a larger update is dealt more evenly", "fewer updates an epoch"
    if batch.global_batch_size is not None:
        return (Knob(options=f"--set batch.global_batch_size={2 * batch.global_batch_size}", gives=gives, costs=costs),)
    return (Knob(options=f"--set batch.tokens_per_update={2 * (batch.tokens_per_update or 1)}", gives=gives, costs=costs),)


def _idle(seen: Seen, found: Shares, late: list[Lateness]) -> Finding | None:
    share = found.share("idle")
    if share < IDLE:
        return None
    of_worst = late[0].idle_share / sum(each.idle_share for each in late) if late else 0.0
    whom = "each for another now and then"
    if of_worst >= OFTEN:
        # In some updates and not in others, or where the first rank has more to do: not what a slow device does.
        late_in = f", late in {late[0].late_phase}" if late[0].late_phase else ""
        whom = f"{of_worst:.0%} of that for rank {late[0].rank} on {host_of(seen, late[0].rank) or '?'}{late_in}, in some updates and not in others"
    return Finding(
        kind="imbalance",
        severity=SLOW,
        what=f"ranks wait for each other {share:.0%} of the time, {whom}",
        phase="idle",
        weight=share,
        causes=("updates of few samples, or of very different lengths, can't be dealt evenly", "other processes take the cores now and then"),
        evidence=(evidence(found, "idle"),),
        knobs=_larger_update(seen),
    )
