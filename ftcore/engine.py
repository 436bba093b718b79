"""The only door to deepspeed: build the engine, run one weighted micro-step, take one step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from ftcore.dist import Ranks

if not torch.cuda.is_available():
    # Before deepspeed is imported: without it every process prints a warning about missing accelerators.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import deepspeed.ops


def join_process_group(ranks: Ranks) -> None:
    """Tells DeepSpeed of the process group; needed before weights are partitioned while they load."""
    # The op speeds up tiny all-reduces between ranks of one CPU host; building it takes 24 s and a
    # compiler, and a stale build lock hangs for ever.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="nccl" if ranks.device.type == "cuda" else "gloo", verbose=False)


class Engine:
    """A DeepSpeed engine that is told the weight of each micro-step's loss and when the update ends."""

    def __init__(self, model: torch.nn.Module, groups: Sequence[dict[str, Any]], ds_config: Path, ranks: Ranks, *, coalesce: bool = False) -> None:
        """`coalesce` reduces the gradients of an update once instead of once a micro-step (stages 2 and 3)."""
        self.deepspeed, self.optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=list(groups), config=str(ds_config))
        self.ranks = ranks
        self._coalesces = coalesce and self.stage in (2, 3)
        self._reduction: AbstractContextManager[None] | None = None

    @property
    def module(self) -> torch.nn.Module:
        """The model as it was given, its parameters partitioned in stage 3."""
        return self.deepspeed.module

    @property
    def stage(self) -> int:
        """ZeRO stage 0-3."""
        return int(self.deepspeed.zero_optimization_stage())

    def train(self) -> None:
        self.deepspeed.train()

    def eval(self) -> None:
        self.deepspeed.eval()

    def begin_update(self, micro_steps: int) -> None:
        """To be called before the first forward of an update of `micro_steps` micro-steps on this rank."""
        self._reduction = self.deepspeed.coalesce_grad_reduction() if self._coalesces and micro_steps > 1 else None
        if self._reduction is not None:
            self._reduction.__enter__()

    def end_backwards(self) -> None:
        """To be called after the last backward: reduces what `begin_update` held back.

        Not a `with` block, because DeepSpeed's context reduces on its way out also after an error, and a rank
        that failed would wait there for the others instead of ending.
        """
        if self._reduction is not None:
            self._reduction.__exit__(None, None, None)
            self._reduction = None

    def backward(self, loss_sum: torch.Tensor, *, weight: float, last: bool) -> None:
        """Adds the gradient of `loss_sum * weight`; `last` marks the update's last micro-step, equal on all ranks.

        DeepSpeed averages gradients over the ranks in every stage, so that a weight of
        world_size / supervised_tokens gives the sum of token losses over the update divided by its tokens.
        """
        self.deepspeed.set_gradient_accumulation_boundary(last)
        self.deepspeed.backward(loss_sum * weight, scale_wrt_gas=False)

    def gradient_norm_before_step(self) -> float | None:
        """The global gradient norm before clipping where DeepSpeed does not work it out itself (stage 0), else None."""
        if self.stage:
            return None
        norms = [parameter.grad.detach().float().norm() for parameter in self.module.parameters() if parameter.grad is not None]
        return float(torch.stack(norms).norm()) if norms else 0.0

    def step(self, learning_rate: float) -> float:
        """Clips, steps and clears the gradients. Returns the global norm before clipping in stages 1-3, 0 in stage 0.

        A norm that is not finite means that DeepSpeed skipped the step and left every parameter as it was.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.deepspeed.step()
        return float(self.deepspeed.get_global_grad_norm()) if self.stage else 0.0
