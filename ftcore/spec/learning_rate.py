"""The learning rate of each update: a function of the update's number alone, whatever the number of ranks; and how much of it there has been."""

from __future__ import annotations

import math

from ftcore.spec.schedule_lengths import STABLE, decay_updates, warmup_updates
from ftcore.spec.sections import ScheduleSection

MOST_TICKS = 4000
"""Values that a clock keeps; between them it goes straight."""


def learning_rate_factor(schedule: ScheduleSection, update: int, total_updates: int) -> float:
    """What `optimizer.learning_rate` is multiplied by in the 0-based `update`; in [0, 1].

    After warm-up, which rises from 0, linear and cosine fall from 1 to min_lr_ratio at `total_updates`, and warmup_stable_decay
    over its last updates alone; as transformers' schedules of those names do (optimization.py: get_linear_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup, get_wsd_schedule).
    """
    kind = schedule.lr_scheduler_type
    warmup = 0 if kind == "constant" else warmup_updates(schedule, total_updates)
    if update < warmup:
        return update / max(1, warmup)
    if kind == STABLE:
        decay = decay_updates(schedule, total_updates)
        progress = (update - (total_updates - decay)) / max(1, decay)
        return _between(schedule.min_lr_ratio, _fallen(schedule.decay_type, progress))
    progress = (update - warmup) / max(1, total_updates - warmup)
    return _between(schedule.min_lr_ratio, _fallen(kind, progress)) if kind in ("linear", "cosine") else 1.0


def _fallen(curve: str, progress: float) -> float:
    """What is left, in [0, 1], of a fall from 1 to 0 once `progress` of it is done."""
    progress = min(max(progress, 0.0), 1.0)
    if curve == "linear":
        return 1.0 - progress
    if curve == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0 - math.sqrt(progress)


def _between(lowest: float, share: float) -> float:
    return share * (1.0 - lowest) + lowest


class LearningClock:
    """How much has been learnt with: the sum of the learning rate's factors up to an update, in updates at the full rate."""

    def __init__(self, schedule: ScheduleSection, total_updates: int) -> None:
        self._step = max(1, -(-total_updates // MOST_TICKS))
        sums = [0.0]
        for first in range(0, total_updates, self._step):
            width = min(self._step, total_updates - first)
            sums.append(sums[-1] + width * learning_rate_factor(schedule, first + width // 2, total_updates))
        self._sums, self._total = sums, total_updates

    def at(self, update: float) -> float:
        """The sum up to `update`, in [0, total_updates]."""
        place = min(max(update, 0.0), float(self._total))
        tick = min(int(place // self._step), len(self._sums) - 2)
        width = min(self._step, self._total - tick * self._step)
        return self._sums[tick] + (self._sums[tick + 1] - self._sums[tick]) * (place - tick * self._step) / width
