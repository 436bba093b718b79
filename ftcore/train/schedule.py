"""The learning rate of each update: a function of the update's number alone, whatever the number of ranks."""

from __future__ import annotations

import math

from ftcore.spec.sections import ScheduleSection


def warmup_updates(schedule: ScheduleSection, total_updates: int) -> int:
    """Updates of warm-up: warmup_steps when given, else warmup_ratio of the run, rounded up."""
    if schedule.warmup_steps is not None:
        return schedule.warmup_steps
    return math.ceil(schedule.warmup_ratio * total_updates)


def learning_rate_factor(schedule: ScheduleSection, update: int, total_updates: int) -> float:
    """What `optimizer.learning_rate` is multiplied by in the 0-based `update`; in [0, 1].

    linear and cosine fall from 1 after warm-up to 0 at `total_updates`, as transformers' schedules of
    those names do (optimization.py: get_linear_schedule_with_warmup, get_cosine_schedule_with_warmup).
    """
    warmup = 0 if schedule.lr_scheduler_type == "constant" else warmup_updates(schedule, total_updates)
    if update < warmup:
        return update / max(1, warmup)
    progress = (update - warmup) / max(1, total_updates - warmup)
    if schedule.lr_scheduler_type == "linear":
        return max(0.0, 1.0 - progress)
    if schedule.lr_scheduler_type == "cosine":
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))
    return 1.0
