"""Learning rate by update number, the same for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ftcore.spec.schedule_lengths import decay_updates, schedule_problems, warmup_updates
from ftcore.spec.sections import ScheduleSection
from ftcore.train.schedule import learning_rate_factor

WSD = ScheduleSection(lr_scheduler_type="warmup_stable_decay", decay_type="linear", warmup_steps=10, decay_ratio=0.2)


@pytest.mark.parametrize(
    ("schedule", "update", "total", "factor"),
    [
        (ScheduleSection(lr_scheduler_type="linear"), 0, 100, 1.0),
        (ScheduleSection(lr_scheduler_type="linear"), 50, 100, 0.5),
        (ScheduleSection(lr_scheduler_type="linear", warmup_steps=2000), 1000, 10_000, 0.5),
        (ScheduleSection(lr_scheduler_type="linear", warmup_ratio=0.1), 10, 100, 1.0),
        (ScheduleSection(lr_scheduler_type="linear", min_lr_ratio=0.2), 50, 100, 0.6),
        (ScheduleSection(lr_scheduler_type="cosine"), 50, 100, 0.5),
        (ScheduleSection(lr_scheduler_type="cosine"), 100, 100, 0.0),
        (ScheduleSection(lr_scheduler_type="cosine", min_lr_ratio=0.1), 100, 100, 0.1),
        (ScheduleSection(lr_scheduler_type="constant", warmup_ratio=0.5), 0, 10, 1.0),
        (ScheduleSection(lr_scheduler_type="constant_with_warmup", warmup_steps=4), 1, 10, 0.25),
        (ScheduleSection(lr_scheduler_type="constant_with_warmup", warmup_steps=4), 9, 10, 1.0),
        (WSD, 5, 100, 0.5),
        (WSD, 10, 100, 1.0),
        (WSD, 80, 100, 1.0),
        (WSD, 90, 100, 0.5),
        (WSD, 100, 100, 0.0),
        (replace(WSD, decay_steps=50), 75, 100, 0.5),
        (replace(WSD, decay_type="1-sqrt"), 85, 100, 0.5),
        (replace(WSD, min_lr_ratio=0.5), 90, 100, 0.75),
    ],
)
def test_factor(schedule: ScheduleSection, update: int, total: int, factor: float) -> None:
    """F11: a function of the update's number alone; halfway through a warm-up of 2000 it is half the peak, resumed or not."""
    assert learning_rate_factor(schedule, update, total) == pytest.approx(factor)


def _linear(optimizer: Any) -> Any:
    from transformers import get_linear_schedule_with_warmup

    return get_linear_schedule_with_warmup(optimizer, 3, 20)


def _cosine(optimizer: Any) -> Any:
    from transformers.optimization import get_cosine_with_min_lr_schedule_with_warmup

    return get_cosine_with_min_lr_schedule_with_warmup(optimizer, 3, 20, min_lr_rate=0.1)


def _stable(decay_type: str) -> Callable[[Any], Any]:
    from transformers.optimization import get_wsd_schedule

    # Without a minimum: transformers' warm-up of this one schedule begins at the minimum, ours at 0 as for all others.
    return lambda optimizer: get_wsd_schedule(optimizer, 3, 6, num_training_steps=20, decay_type=decay_type)


@pytest.mark.parametrize(
    ("schedule", "theirs"),
    [
        (ScheduleSection(lr_scheduler_type="linear"), _linear),
        (ScheduleSection(lr_scheduler_type="cosine", min_lr_ratio=0.1), _cosine),
        *((replace(WSD, decay_steps=6, decay_type=curve), _stable(curve)) for curve in ("linear", "cosine", "1-sqrt")),
    ],
)
def test_factors_are_those_of_transformers(schedule: ScheduleSection, theirs: Callable[[Any], Any]) -> None:
    import torch

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, schedule = theirs(optimizer), replace(schedule, warmup_steps=3)
    for update in range(20):
        assert learning_rate_factor(schedule, update, 20) == pytest.approx(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()


def test_ratios_round_up() -> None:
    assert warmup_updates(ScheduleSection(warmup_ratio=0.1), 31) == 4
    assert decay_updates(replace(WSD, decay_ratio=0.1), 31) == 4
    assert decay_updates(ScheduleSection(), 31) == 0


@pytest.mark.parametrize(
    ("schedule", "total", "where", "fix"),
    [
        (replace(WSD, warmup_steps=80), 100, None, ""),
        (replace(WSD, warmup_steps=81), 100, "decay_ratio", "decay_steps 19 or less"),
        (replace(WSD, warmup_steps=81, decay_steps=20), 100, "decay_steps", "decay_steps 19 or less"),
        (replace(WSD, warmup_steps=100), 100, "decay_ratio", "99 updates or less"),
        (replace(WSD, warmup_steps=101), 100, "warmup_steps", "give 100 or less"),
        (replace(WSD, warmup_steps=None, warmup_ratio=0.5, decay_ratio=0.5), 5, "decay_ratio", "decay_steps: 2"),
        (ScheduleSection(warmup_steps=100), 100, None, ""),
    ],
)
def test_what_does_not_fit_into_a_run(schedule: ScheduleSection, total: int, where: str | None, fix: str) -> None:
    found = schedule_problems(schedule, total)
    assert [problem.where for problem in found] == ([f"schedule.{where}"] if where else [])
    assert all(fix in problem.fix for problem in found)
