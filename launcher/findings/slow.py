"""A run that is slower than it might be: each share of its time that stands out, with its knob."""

from __future__ import annotations

from collections.abc import Callable

from ftcore.spec.run_record import number
from launcher.findings.busy_host import held_up
from launcher.findings.finding import SLOW, Evidence, Finding, Knob
from launcher.findings.seen import Seen, host_of, middle
from launcher.findings.shares import Shares, evidence, shares, speed
from launcher.findings.slow_rank import more_ahead, waiting
from launcher.json_lines import json_object

DATA_WAIT, SAVING, EVALUATING, COMMUNICATING, OTHER = 0.05, 0.05, 0.15, 0.25, 0.20
"""Shares of the time from which on a phase is told of."""
UNPLANNED = 0.10
"""Share of communication from which on it is told of where it takes BEHIND times what was planned."""
BEHIND = 2.0
"""Times the planned seconds of an update from which on a run is behind its plan: the plan's model is no finer where nothing was measured."""
LEAST_UPDATES = 5
"""Updates below which shares say nothing."""


def slow_findings(seen: Seen) -> list[Finding]:
    """Everything that costs time; empty where too few updates were logged to tell."""
    found = shares(seen)
    if found.updates < LEAST_UPDATES or found.seconds <= 0:
        return []
    checks: tuple[Callable[[Seen, Shares], Finding | None], ...] = (_data, waiting, _talking, _saving, _scoring, _unnamed, _behind)
    told = [held_up(seen), *(check(seen, found) for check in checks)]
    return [finding for finding in told if finding is not None]


def _data(seen: Seen, found: Shares) -> Finding | None:
    share = found.share("data_wait")
    if share < DATA_WAIT:
        return None
    spec = seen.resolved.spec.data if seen.resolved is not None else None
    knobs = []
    if spec is not None:
        knobs.append(more_ahead(spec))
        knobs.append(
            Knob(
                options=f"--set data.num_proc={2 * (spec.num_proc or 1)}", gives="more processes read and tokenise", costs="cores of the host", may_resume=True
            )
        )
    worst = _worst(seen, "data_wait")
    return Finding(
        kind="slow_data",
        severity=SLOW,
        what=f"{share:.0%} of the time is waiting for data ({found.an_update('data_wait'):.3g} s an update)",
        phase="data_wait",
        weight=share,
        causes=("reading or tokenising can't keep up: a slow disk, a stream from a network, or too few cores", *worst),
        evidence=(evidence(found, "data_wait"),),
        knobs=tuple(knobs),
    )


def _talking(seen: Seen, found: Shares) -> Finding | None:
    share = found.share("communication")
    forecast = (seen.record.memory or {}).get("forecast")
    planned_s = number(forecast, "communication_s") if isinstance(forecast, dict) else 0.0
    measured_s = found.an_update("communication")
    is_behind = planned_s > 0 and share >= UNPLANNED and measured_s > BEHIND * planned_s
    if share < COMMUNICATING and not is_behind:
        return None
    expected = f"; the plan expected {planned_s:.3g} s" if planned_s else ""
    spec = seen.resolved.spec if seen.resolved is not None else None
    knobs = []
    if not _overlaps(seen):
        knobs.append(Knob(options="--set zero.overlap_comm=true", gives="communicates while gradients are computed", may_resume=False))
    if spec is not None and spec.zero.stage == 3:
        knobs.insert(0, Knob(options="--zero 2", gives="weights are not gathered in every pass", costs="each rank holds all weights", may_resume=True))
    if spec is not None and spec.batch.global_batch_size is not None:
        knobs.append(
            Knob(
                options=f"--set batch.global_batch_size={2 * spec.batch.global_batch_size}",
                gives="half as many reductions a sample",
                costs="fewer updates an epoch",
            )
        )
    return Finding(
        kind="slow_communication",
        severity=SLOW,
        what=f"{share:.0%} of the time is communication ({measured_s:.3g} s an update{expected})",
        phase="communication",
        weight=share,
        causes=(
            *(
                ("the network is slower than the plan thinks: which interface? (`ftlaunch doctor --hosts RUN/hostfile --all-reduce`)",)
                if planned_s and measured_s > BEHIND * planned_s
                else ()
            ),
            "little work for each byte that is sent: small updates, or a high ZeRO stage",
        ),
        evidence=(evidence(found, "communication"), *((Evidence(what=f"planned: {planned_s:.3g} s an update", file="memory.json"),) if planned_s else ())),
        knobs=tuple(knobs),
    )


def _overlaps(seen: Seen) -> bool:
    """Whether the run communicates while gradients are computed, by its spec or by the preset of its stage."""
    try:
        text = seen.record.run_dir.ds_config.read_bytes()
    except OSError:
        return False
    zero = (json_object(text) or {}).get("zero_optimization")
    return isinstance(zero, dict) and zero.get("overlap_comm") is True


def _saving(seen: Seen, found: Shares) -> Finding | None:
    share = found.share("checkpoint")
    if share < SAVING:
        return None
    spec = seen.resolved.spec.checkpoint if seen.resolved is not None else None
    knobs = []
    if spec is not None and not spec.save_async:
        knobs.append(
            Knob(
                options="--set checkpoint.save_async=true", gives="written while training goes on", costs="host memory for a copy of the state", may_resume=True
            )
        )
    if spec is not None and spec.save_steps:
        knobs.append(
            Knob(
                options=f"--set checkpoint.save_steps={4 * spec.save_steps}",
                gives=_a_quarter(seen, 4 * spec.save_steps, "save"),
                costs="more is trained again after a failure",
                may_resume=True,
            )
        )
    return Finding(
        kind="slow_checkpoints",
        severity=SLOW,
        what=f"{share:.0%} of the time is saving checkpoints ({len(seen.events('checkpoint'))} so far)",
        phase="checkpoint",
        weight=share,
        causes=("checkpoints are more frequent than their size and this disk allow",),
        evidence=(evidence(found, "checkpoint"), Evidence(what=f"{len(seen.events('checkpoint'))} checkpoint events", file="events.jsonl")),
        knobs=tuple(knobs),
    )


def _scoring(seen: Seen, found: Shares) -> Finding | None:
    share = found.share("evaluation")
    if share < EVALUATING:
        return None
    steps = seen.resolved.spec.evaluation.eval_steps if seen.resolved is not None else 0
    knobs = (Knob(options=f"--set evaluation.eval_steps={4 * steps}", gives=_a_quarter(seen, 4 * steps, "evaluation"), may_resume=True),) if steps else ()
    return Finding(
        kind="slow_evaluation",
        severity=SLOW,
        what=f"{share:.0%} of the time is evaluating",
        phase="evaluation",
        weight=share,
        causes=("evaluations are frequent, or their sets large, for the updates between them",),
        evidence=(evidence(found, "evaluation"), Evidence(what=f"{len(seen.events('evaluation'))} evaluation events", file="events.jsonl")),
        knobs=knobs,
    )


def _a_quarter(seen: Seen, steps: int, what: str) -> str:
    """What it gives to do something every `steps` updates, four times as seldom as before."""
    total = max((number(line, "total_updates") for line in seen.record.updates), default=0.0)
    return f"only the {what} at the end" if 0 < total <= steps else f"a quarter of the {what}s"


def _unnamed(seen: Seen, found: Shares) -> Finding | None:
    share = found.share("other")
    if not found.measured or share < OTHER:
        return None
    return Finding(
        kind="slow_other",
        severity=SLOW,
        what=f"{share:.0%} of the time is in no phase: Python between the micro-steps, logging, or a busy host",
        phase="other",
        weight=share,
        causes=("very small micro-steps, a file system that is slow to take log lines, or other processes on the cores",),
        evidence=(evidence(found, "other"),),
        knobs=(Knob(options="--set logging.logging_steps=10", gives="a tenth of the lines", may_resume=True),),
    )


def _behind(seen: Seen, found: Shares) -> Finding | None:
    pace = speed(seen)
    if pace is None or pace.measured_s < BEHIND * pace.planned_s:
        return None
    forecast = (seen.record.memory or {}).get("forecast") or {}
    larger = pace.tokens / pace.planned_tokens if pace.is_corrected else 1.0
    planned = (number(forecast, "compute_s") + number(forecast, "memory_s")) * larger
    counted = (f"counted for the {pace.tokens:,.0f} tokens of an update; the plan had {pace.planned_tokens:,.0f}",) if pace.is_corrected else ()
    computed = found.an_update("forward", "backward", "optimizer")
    times = pace.measured_s / pace.planned_s
    said = forecast.get("notes")
    notes = tuple(f"the plan: {text}" for text in said) if isinstance(said, list) else ()
    return Finding(
        kind="slower_than_planned",
        severity=SLOW,
        what=f"an update takes {pace.measured_s:.3g} s, {times:.1f} times the {pace.planned_s:.3g} s of the plan",
        weight=min(0.5, 1 - 1 / times) * 0.5,
        details=(*counted, f"computing takes {computed:.3g} s an update, {planned:.3g} s in the plan", *notes),
        causes=(
            "the findings beside this one come first",
            "other processes on the device, a clock that is throttled, or a plan that does not know this machine (`ftlaunch pilot` measures it)",
        ),
        evidence=(
            Evidence(what=f"median {pace.measured_s:.3g} s an update", file="metrics.jsonl"),
            Evidence(what=f"planned {number(forecast, 'update_s'):.3g} s", file="memory.json"),
        ),
    )


def _worst(seen: Seen, phase: str) -> tuple[str, ...]:
    """The rank that spends most on a phase, where it stands out."""
    by_rank = {
        rank: middle(number(line["phases"], phase) for line in seen.steady_of(rank) if isinstance(line.get("phases"), dict)) for rank in seen.record.ranks
    }
    if len(by_rank) < 2:
        return ()
    rank = max(by_rank, key=lambda each: by_rank[each])
    others = middle(value for each, value in by_rank.items() if each != rank)
    return (
        (f"rank {rank} on {host_of(seen, rank) or '?'} most of all: {by_rank[rank]:.3g} s an update, {others:.3g} s elsewhere",)
        if by_rank[rank] > 2 * others
        else ()
    )
