"""A model that is only read from: whole on each rank, or partitioned over the ranks by DeepSpeed (ZeRO stage 3). No optimizer, no gradients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

# Before deepspeed: it sets what deepspeed reads at import.
from ftcore.engine import join_process_group

import deepspeed  # isort: skip

from ftcore.dist import Ranks

__all__ = ["InferenceEngine", "fill", "join_process_group"]


class InferenceEngine:
    """What `ftcore.train.evaluate.evaluate` takes, and generation."""

    def __init__(self, model: torch.nn.Module, ds_config: Path, ranks: Ranks) -> None:
        """In stages 0 to 2, which partition nothing that inference needs, DeepSpeed is left out: `deepspeed` is the model itself."""
        config = json.loads(ds_config.read_text(encoding="utf-8"))
        self.ranks = ranks
        self.stage = int(config["zero_optimization"]["stage"])
        self._autocast = bool(config.get("torch_autocast", {}).get("enabled"))
        self.module = model.eval()
        if self.stage == 3:
            self.deepspeed: Any = deepspeed.initialize(model=model, config=config)[0]
        else:
            self.deepspeed = model.to(ranks.device)

    def train(self) -> None:
        """Does nothing: the model is always in evaluation mode."""

    def eval(self) -> None:
        self.module.eval()

    def computing(self) -> AbstractContextManager[Any]:
        """To be entered around calls of `module`, and in stages 0 to 2 of `deepspeed`: bf16 matrix products where train.precision is bf16_autocast."""
        return torch.autocast(self.ranks.device.type, torch.bfloat16) if self._autocast else nullcontext()

    @property
    def in_step(self) -> bool:
        """Whether every forward needs all ranks."""
        return self.stage == 3 and self.ranks.world_size > 1


@torch.no_grad()
def fill(model: torch.nn.Module, names: Iterable[str], value: Callable[[str], torch.Tensor], ranks: Ranks) -> None:
    """Puts `value(name)` into each named parameter, whole or partitioned, before the engine exists. Of a partitioned one rank 0 alone reads the value.

    Every rank must call it with the same names in the same order; no more than one parameter is whole at a time.
    """
    parameters = dict(model.named_parameters())
    for name in names:
        parameter = parameters[name]
        is_partitioned = hasattr(parameter, "ds_id")
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0, enabled=is_partitioned):
            if ranks.is_first or not is_partitioned:
                parameter.data.copy_(value(name))
