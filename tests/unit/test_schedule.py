"""Learning rate by update number, the same for any number of ranks."""

from __future__ import annotations

import pytest

from ftcore.spec.sections import ScheduleSection
from ftcore.train.schedule import learning_rate_factor, warmup_updates


@pytest.mark.parametrize(
    ("schedule", "update", "total", "factor"),
    [
        (ScheduleSection(lr_scheduler_type="linear"), 0, 100, 1.0),
        (ScheduleSection(lr_scheduler_type="linear"), 50, 100, 0.5),
        (ScheduleSection(lr_scheduler_type="linear", warmup_steps=2000), 1000, 10_000, 0.5),
        (ScheduleSection(lr_scheduler_type="linear", warmup_ratio=0.1), 10, 100, 1.0),
        (ScheduleSection(lr_scheduler_type="cosine"), 50, 100, 0.5),
        (ScheduleSection(lr_scheduler_type="cosine"), 100, 100, 0.0),
        (ScheduleSection(lr_scheduler_type="constant", warmup_ratio=0.5), 0, 10, 1.0),
        (ScheduleSection(lr_scheduler_type="constant_with_warmup", warmup_steps=4), 1, 10, 0.25),
        (ScheduleSection(lr_scheduler_type="constant_with_warmup", warmup_steps=4), 9, 10, 1.0),
    ],
)
def test_factor(schedule: ScheduleSection, update: int, total: int, factor: float) -> None:
    """F11: a function of the update's number alone; halfway through a warm-up of 2000 it is half the peak, resumed or not."""
    assert learning_rate_factor(schedule, update, total) == pytest.approx(factor)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_factors_are_those_of_transformers(name: str) -> None:
    import torch
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_scheduler(name, optimizer, num_warmup_steps=3, num_training_steps=20)
    schedule = ScheduleSection(lr_scheduler_type=name, warmup_steps=3)
    for update in range(20):
        assert learning_rate_factor(schedule, update, 20) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


def test_ratio_rounds_up() -> None:
    assert warmup_updates(ScheduleSection(warmup_ratio=0.1), 31) == 4
