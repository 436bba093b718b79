"""How many updates a schedule warms up and decays, and whether they fit a run: the same arithmetic before a run and in it."""

from __future__ import annotations

import math

from ftcore.spec.errors import Problem
from ftcore.spec.sections import ScheduleSection

STABLE = "warmup_stable_decay"


def warmup_updates(schedule: ScheduleSection, total_updates: int) -> int:
    """Updates of warm-up: warmup_steps when given, else warmup_ratio of the run, rounded up."""
    if schedule.warmup_steps is not None:
        return schedule.warmup_steps
    return math.ceil(schedule.warmup_ratio * total_updates)


def decay_updates(schedule: ScheduleSection, total_updates: int) -> int:
    """Updates over which warmup_stable_decay falls at the end: decay_steps when given, else decay_ratio of the run, rounded up; 0 for other schedules."""
    if schedule.lr_scheduler_type != STABLE:
        return 0
    return schedule.decay_steps if schedule.decay_steps is not None else math.ceil(schedule.decay_ratio * total_updates)


def schedule_problems(schedule: ScheduleSection, total_updates: int) -> list[Problem]:
    """What of the schedule does not fit into a run of `total_updates`, with the nearest values that do."""
    warmup, decay = warmup_updates(schedule, total_updates), decay_updates(schedule, total_updates)
    run = f"a run of {total_updates} updates"
    if schedule.warmup_steps is not None and warmup > total_updates:
        what = f"a warm-up of {warmup} updates does not end in {run}"
        return [Problem(what=what, where="schedule.warmup_steps", fix=f"give {total_updates} or less")]
    if warmup + decay <= total_updates:
        return []
    what = f"a warm-up of {warmup} updates and a decay of {decay} don't fit into {run}"
    if schedule.decay_steps is None and schedule.warmup_steps is None and schedule.warmup_ratio + schedule.decay_ratio <= 1:
        # Both were rounded up.
        return [Problem(what=what, where="schedule.decay_ratio", fix=f"write decay_steps: {total_updates - warmup}")]
    where = "schedule.decay_steps" if schedule.decay_steps is not None else "schedule.decay_ratio"
    left = total_updates - warmup
    fix = f"give decay_steps {left} or less, or a shorter warm-up" if left else f"give a warm-up of {total_updates - 1} updates or less"
    return [Problem(what=what, where=where, fix=fix)]
