"""The only door to deepspeed: build the engine, run one weighted micro-step, take one step."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What became of an update's step, the same on every rank."""

    applied: bool
    """False when the gradient was not finite: nothing was changed."""
    grad_norm: torch.Tensor | float | None
    """Global, before clipping; reading a tensor's value waits for the device."""
    loss_scale: float | None = None
    """What fp16 multiplied the losses of this update by; None in other precisions."""


class Engine:
    """A DeepSpeed engine that is told the weight of each micro-step's loss and when the update ends."""

    def __init__(
        self,
        model: torch.nn.Module,
        groups: Sequence[dict[str, Any]],
        ds_config: Path,
        ranks: Ranks,
        *,
        coalesce: bool = False,
        optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer] | None = None,
    ) -> None:
        """`coalesce` reduces the gradients of an update once instead of once a micro-step (stages 2 and 3).

        `optimizer` makes the optimizer over the groups; None: `ds_config` names it.
        """
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._settings = {names[id(parameter)]: {key: group[key] for key in group if key != "params"} for group in groups for parameter in group["params"]}
        self.deepspeed, self.optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=list(groups), config=str(ds_config), optimizer=optimizer)
        if getattr(getattr(self.optimizer, "loss_scaler", None), "dynamic", False):
            # At the lowest scale DeepSpeed would raise in the middle of its step (runtime/fp16/loss_scaler.py); `train.on_nonfinite` decides instead.
            self.optimizer.loss_scaler.raise_error_at_min_scale = False
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

    def named_groups(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each trained parameter's name with the settings of its group, as they were given."""
        yield from self._settings.items()

    def train(self) -> None:
        self.deepspeed.train()

    def eval(self) -> None:
        self.deepspeed.eval()

    def holders_of_collectives(self) -> tuple[Any, ...]:
        """What keeps functions of torch.distributed from DeepSpeed's start: its communication backend (comm/torch.py, all_gather_function)."""
        backend = deepspeed.comm.comm.cdb
        return () if backend is None else (backend,)

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
        A loss that is not finite makes the gradient NaN, so that the step is refused on every rank
        without a look at the loss: such a loss can have a finite gradient (a label of probability 0).
        """
        self.deepspeed.set_gradient_accumulation_boundary(last)
        finite_or_nan = 1.0 + (loss_sum.detach() - loss_sum.detach())
        self.deepspeed.backward(loss_sum * finite_or_nan * weight, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> StepOutcome:
        """Clips, steps with `learning_rate` times each group's `lr_scale`, and clears the gradients.

        Where the gradient is not finite the step is not taken, on any rank, and parameters and moments stay as they were:
        in stages 1-3 DeepSpeed sees to that, in stage 0 this function.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("lr_scale", 1.0)
        if self.stage:
            scale = self.loss_scale()
            self.deepspeed.step()
            return StepOutcome(self.deepspeed.was_step_applied(), self.deepspeed.get_global_grad_norm(), scale)
        norm = self._local_norm()
        if not math.isfinite(norm):
            self.deepspeed.zero_grad()
            return StepOutcome(False, norm)
        self.deepspeed.step()
        return StepOutcome(True, norm)

    def loss_scale(self) -> float | None:
        """What fp16 multiplies the loss by now; None in other precisions."""
        return float(self.deepspeed.optimizer.loss_scale) if self.deepspeed.fp16_enabled() else None

    def _local_norm(self) -> float:
        """The norm of the averaged gradients, which every rank holds whole in stage 0."""
        norms = [parameter.grad.detach().float().norm() for parameter in self.module.parameters() if parameter.grad is not None]
        return float(torch.stack(norms).norm()) if norms else 0.0
