"""What would take less memory, in order of cost: each is the run's own spec with that one thing changed, and its ledger built anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_record import number
from launcher.combinations.verdict import REFUSED_WORD, verdict
from launcher.findings.finding import Knob
from launcher.findings.micro_steps import widest_row, within
from launcher.findings.seen import Seen
from launcher.memory.accelerators import find_accelerator
from launcher.memory.activation_row import Row
from launcher.memory.choices import Choice, apply, as_options, assignments, choice_of
from launcher.memory.cost import time_and_cost
from launcher.memory.fit import gib
from launcher.memory.ledger import build_ledger
from launcher.resuming import FREE_KEYS

RECOMPUTING = "20-40 % more time"
SMALLER = "smaller micro-steps keep the device less busy; the objective stays the same"
OFFLOAD = "slow: what is offloaded crosses to the host and back in every update"
_LEAST_SHARE = 0.005
"""Of a rank's memory, which a knob must save to be named."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What was short, and where."""

    row: Row | None
    """The micro-step at which it was; None: the largest that the spec allows."""
    bytes: int | None
    """None: not known."""


def memory_knobs(seen: Seen, short: Shortage) -> tuple[Knob, ...]:
    """Knobs that save memory on a rank by the ledger, cheapest first; none where there is no ledger."""
    resolved, shape = seen.resolved, seen.shape
    if resolved is None or shape is None:
        return ()
    row = short.row or widest_row(seen, resolved)
    before = build_ledger(resolved, shape, row, on_cpu=seen.on_cpu).device_peak_bytes
    found = []
    for choice, cost in _choices(seen, resolved):
        changed = apply(resolved, choice)
        if verdict(changed.spec).word == REFUSED_WORD:
            continue
        after = build_ledger(changed, shape, within(row, changed), on_cpu=seen.on_cpu).device_peak_bytes
        changes = assignments(resolved.spec, choice)
        saved = before - after
        if saved < max(1, _LEAST_SHARE * before):
            continue
        found.append(
            Knob(
                options=as_options(changes),
                gives=f"{gib(saved)} less on a rank ({gib(before)} to {gib(after)} by the ledger)",
                costs=cost + _slower(seen, resolved, changed),
                saved_bytes=saved,
                is_enough=None if short.bytes is None else saved >= short.bytes,
                may_resume=set(changes) <= set(FREE_KEYS),
            )
        )
    return tuple(found)


def _choices(seen: Seen, resolved: ResolvedSpec) -> Iterator[tuple[Choice, str]]:
    """One change each, in order of cost: recomputing, smaller micro-steps, a higher stage, and offload last."""
    own = choice_of(resolved.spec)
    rules = {"none": ("every:2", "full"), "full": ()}.get(own.recomputed, ("full",))
    for rule in rules:
        yield dataclasses.replace(own, recomputed=rule), RECOMPUTING if rule == "full" else "about half of that: 10-20 % more time"
    for budget in smaller_budgets(resolved):
        yield dataclasses.replace(own, micro_batch_tokens=budget), SMALLER
    if resolved.world_size > 1:
        for stage in range(own.way.stage + 1, 4):
            talk = "weights are gathered in every forward and backward pass: half as much communication again" if stage == 3 else "as much communication"
            yield dataclasses.replace(own, way=dataclasses.replace(own.way, stage=stage)), talk
    # Ranks that compute on their host have nowhere to move memory to.
    if seen.on_cpu:
        return
    stage = max(1, own.way.stage)
    if own.way.offload_optimizer == "none":
        yield dataclasses.replace(own, way=dataclasses.replace(own.way, stage=stage, offload_optimizer="cpu")), OFFLOAD
    if own.way.offload_param == "none":
        optimizer = own.way.offload_optimizer if own.way.offload_optimizer != "none" else "cpu"
        yield dataclasses.replace(own, way=dataclasses.replace(own.way, stage=3, offload_optimizer=optimizer, offload_param="cpu")), OFFLOAD


def smaller_budgets(resolved: ResolvedSpec) -> list[int]:
    """Values of micro_batch_tokens: half, a quarter and an eighth of it, and the least that the longest sample allows."""
    own, least = resolved.spec.batch.micro_batch_tokens, resolved.spec.data.max_length
    return sorted({max(least, own // part) for part in (2, 4, 8)} | {least}, reverse=True) if least < own else []


def shorter_samples(seen: Seen, resolved: ResolvedSpec) -> str:
    """What to do where micro_batch_tokens is at its least already; empty where it is not."""
    if resolved.spec.batch.micro_batch_tokens > resolved.spec.data.max_length:
        return ""
    longest = (seen.record.plan or {}).get("longest")
    tokens = int(number(longest, "tokens")) if isinstance(longest, dict) else 0
    least = "batch.micro_batch_tokens is as small as data.max_length allows"
    if 0 < tokens < resolved.spec.data.max_length:
        return f"{least}; the longest sample has {tokens:,} tokens, so both may be {tokens:,} without any sample being cut"
    return f"{least}; a smaller data.max_length cuts or drops samples"


def _slower(seen: Seen, before: ResolvedSpec, after: ResolvedSpec) -> str:
    """What the plan's model of time says of a change, in words; empty where it can't say."""
    capacity = (seen.record.memory or {}).get("capacity")
    name = capacity.get("accelerator") if isinstance(capacity, dict) else None
    if seen.shape is None or not name:
        return ""
    try:
        accelerator = find_accelerator(str(name))
        seconds = [time_and_cost(each, seen.shape, build_ledger(each, seen.shape, on_cpu=seen.on_cpu), accelerator).update.total_s for each in (before, after)]
    except Exception:  # noqa: BLE001  an estimate of time is no reason to say nothing of memory
        return ""
    return f" (by the plan's model {seconds[1] / seconds[0] - 1:+.0%})" if seconds[0] > 0 else ""
