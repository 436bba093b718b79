"""What happens to an update whose loss or gradient is not finite: which micro-step it was, and whether the run goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ftcore.dist import gather_objects
from ftcore.engine import Engine
from ftcore.spec.errors import TrainingError
from ftcore.spec.sections import TrainSection
from ftcore.train.step import UpdateResult

SHOWN_SAMPLES = 200
"""Sample ids of a micro-step that are written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An update that changed nothing; the same on every rank."""

    reason: str
    """What was not finite."""
    culprits: tuple[dict[str, Any], ...]
    """The micro-steps whose loss was not finite: rank, micro_step, loss, samples; all of the update's when only the gradient was not."""
    is_overflow: bool
    """fp16 alone: the losses were finite, and the loss scale may have been too large."""
    loss_scale: float | None = None
    """What fp16 multiplied the losses by; None in other precisions."""

    @property
    def is_scale_search(self) -> bool:
        """Whether DeepSpeed lowers the loss scale for it, which says nothing of the data; at a scale of 1 nothing is left to lower."""
        return self.is_overflow and self.loss_scale is not None and self.loss_scale > 1.0


def explain(engine: Engine, result: UpdateResult, samples: list[list[int]]) -> Refused:
    """Why an update was refused; `samples` are the ids of this rank's micro-steps. Every rank calls it, and talks to the others."""
    losses = result.loss_sums.tolist()
    mine = [
        {"rank": engine.ranks.rank, "micro_step": step, "loss": str(sum(by_adapter)), "samples": samples[step][:SHOWN_SAMPLES]}
        for step, by_adapter in enumerate(losses)
    ]
    every = [entry for entries in gather_objects(mine, engine.ranks) for entry in entries]
    culprits = tuple(entry for entry in every if not math.isfinite(float(entry["loss"])))
    if culprits:
        return Refused(reason=f"the loss is {culprits[0]['loss']}", culprits=culprits, is_overflow=False)
    norm = result.outcome.grad_norm
    shown = float(norm) if isinstance(norm, (torch.Tensor, float, int)) else math.inf
    scale = result.outcome.loss_scale
    at_scale = "" if scale is None else f" at loss scale {scale:g}"
    return Refused(reason=f"the gradient norm is {shown}{at_scale}", culprits=tuple(every), is_overflow=scale is not None, loss_scale=scale)


class NonFiniteRule:
    """`train.on_nonfinite`: counts refused updates in a row; kept the same on every rank by being told the same."""

    def __init__(self, train: TrainSection) -> None:
        self._train = train
        self._in_a_row = 0

    def applied(self) -> None:
        """An update took its step."""
        self._in_a_row = 0

    def refused(self, why: Refused) -> None:
        """An update changed nothing. Raises TrainingError where the rule says that the run ends."""
        if why.is_scale_search:
            return
        self._in_a_row += 1
        stops = self._train.on_nonfinite == "stop"
        if not stops and self._in_a_row <= self._train.max_nonfinite_updates:
            return
        in_a_row = "" if stops else f" in {self._in_a_row} updates in a row"
        raise TrainingError(
            f"{why.reason}{in_a_row}; the step was not taken and no parameter was changed",
            where="loss" if why.reason.startswith("the loss") else "gradient",
            fix=_fix(self._train),
        )


def _fix(train: TrainSection) -> str:
    other = "use precision bf16 or fp32, " if train.precision == "fp16" else "use precision fp32, " if train.precision != "fp32" else ""
    skip = ", or set train.on_nonfinite: skip" if train.on_nonfinite == "stop" else ""
    return f"lower optimizer.learning_rate, {other}look at the samples named in events.jsonl{skip}"
