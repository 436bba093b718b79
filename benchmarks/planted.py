"""Makes one rank slow on purpose, by a sleep where its work of one phase is: for trials and tests, never in a run."""

from __future__ import annotations

import time
from typing import Any

import torch

from ftcore.train.loop import Trainer

PLACES = ("data_wait", "forward", "backward", "optimizer", "checkpoint", "evaluation")


def plant(trainer: Trainer, place: str, seconds: float) -> None:
    """From now on this rank sleeps so long, once each time it is at this place: an update's data, a forward, a backward, a step, a save, a batch scored."""
    engine = trainer.engine
    holder, name = {
        "data_wait": (trainer._feeder, "next"),
        "backward": (engine, "backward"),
        "optimizer": (engine, "step"),
        "checkpoint": (trainer._saver, "begin"),
    }.get(place, (None, ""))
    if holder is not None:
        setattr(holder, name, _late(getattr(holder, name), seconds))
        return
    in_training = place == "forward"

    def before(module: torch.nn.Module, inputs: Any) -> None:
        if module.training is in_training:
            time.sleep(seconds)

    engine.module.register_forward_pre_hook(before)


def _late(work: Any, seconds: float) -> Any:
    def late(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return work(*args, **kwargs)

    return late
