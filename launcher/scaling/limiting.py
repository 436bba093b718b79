"""What keeps a point from scaling better, named in words: the phase in which the most device time is lost against the baseline. Pure functions."""

from __future__ import annotations

from ftcore.spec.scale_result import ScalePoint

SCALES = 0.97
"""Efficiency from which nothing is said to limit."""
WORTH_NAMING = 0.03
"""Share of an update below which a phase of a baseline is not named."""
HELD_UP = 0.1
"""Share of an update without a processor, over the baseline's, from which that is told of computing that grew."""
COMPUTING = "computing"
WAITING = ("data_wait", "communication", "idle", "optimizer", "checkpoint", "evaluation", "other")
"""Phases in which nothing is learnt; forward and backward together are computing."""
_WORDS = {
    "data_wait": "data: the ranks wait for their samples",
    "communication": "communication",
    "idle": "idle by imbalance: ranks wait for a later one",
    "optimizer": "the optimizer step",
    "checkpoint": "checkpoints",
    "evaluation": "evaluation",
    "other": "the host: work between the phases",
}


def token_cost(point: ScalePoint) -> dict[str, float]:
    """Phase -> rank-seconds a token; forward and backward together are `computing`."""
    per_token = point.ranks / max(1.0, point.tokens or 0.0)
    cost = {phase: point.phases.get(phase, 0.0) * per_token for phase in WAITING}
    return {**cost, COMPUTING: _busy(point) * per_token}


def name_limit(point: ScalePoint, base: ScalePoint) -> str:
    """What limits the point; `base` is the baseline of its stage, itself for that one."""
    if point.name == base.name:
        return _of_baseline(point)
    crowd = _crowd(point)
    efficiency = point.normalised_efficiency if point.cores else point.efficiency
    before, now = token_cost(base), token_cost(point)
    growth = {phase: now[phase] - before[phase] for phase in now}
    if crowd:
        # Ranks that take turns on a core compute more slowly, each by itself: that says nothing beyond the crowd.
        growth.pop(COMPUTING)
    elif efficiency is not None and efficiency >= SCALES:
        return "nothing: it scales"
    lost = sum(max(0.0, grown) for grown in growth.values())
    phase = max(growth, key=lambda each: growth[each])
    if lost <= 0 or growth[phase] <= 0:
        return crowd or "nothing that was measured grew"
    text = f"{_words(phase, point, base)} ({growth[phase] / lost:.0%} of the time lost)"
    if not crowd:
        return text
    share = point.phases.get(phase, 0.0) / (point.update_seconds or 1.0)
    return f"{crowd}; beside that {_words(phase, point, base)} ({share:.0%} of an update)" if share >= WORTH_NAMING else crowd


def _crowd(point: ScalePoint) -> str:
    if not point.oversubscribed:
        return ""
    threads = f", {point.threads} threads each," if (point.threads or 1) > 1 else ""
    return f"oversubscription: {point.ranks} ranks{threads} share {point.cores} core{'' if point.cores == 1 else 's'}"


def _of_baseline(point: ScalePoint) -> str:
    phases, total = point.phases, point.update_seconds or 1.0
    phase = max(WAITING, key=lambda each: phases.get(each, 0.0))
    share = phases.get(phase, 0.0) / total
    crowd = _crowd(point)
    if share < WORTH_NAMING:
        return crowd or COMPUTING
    busy = _busy(point) / total
    text = f"{_words(phase, point, point)} ({share:.0%} of an update)"
    if crowd:
        return f"{crowd}; beside that {text}"
    return f"{COMPUTING} ({busy:.0%} of an update); beside that {text}" if busy > share else text


def _words(phase: str, point: ScalePoint, base: ScalePoint) -> str:
    if phase == "idle":
        return _WORDS[phase] + (f" (most of all for {point.late_rank})" if point.late_rank else "")
    if phase == COMPUTING:
        held_up = _held_up(point)
        if held_up - _held_up(base) >= HELD_UP:
            return f"computing: ranks stand still {held_up:.0%} of the time, since their host has no processor free for them"
        fewer, more = point.row_tokens or 0.0, base.row_tokens or 0.0
        if 0 < fewer < 0.8 * more:
            return f"computing: micro-steps are smaller, {fewer:,.0f} tokens against {more:,.0f}, and use the device less well"
        return "computing: a rank is slower beside others (memory, caches, clock)"
    return _WORDS[phase]


def _held_up(point: ScalePoint) -> float:
    return (point.held_up_seconds or 0.0) / (point.update_seconds or 1.0)


def _busy(point: ScalePoint) -> float:
    return point.phases.get("forward", 0.0) + point.phases.get("backward", 0.0)
