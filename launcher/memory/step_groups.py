"""The groups in which the optimizer steps the trained parameters, as ftcore.model.groups makes them, and the bytes of its state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ftcore.spec.sections import OptimizerSection, Spec
from launcher.memory.layout import Held, Layout

BLOCK = 256
"""Numbers that share a scale in 8-bit AdamW's moments."""
BY_POSITION = ("adamw_8bit", "muon")
"""Optimizers that treat matrices between the first and the last layer otherwise than the rest."""
FLOAT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGroup:
    """Parameters that DeepSpeed flattens together."""

    sizes: tuple[int, ...]
    """Numbers of each parameter."""
    state_bytes: float
    """Of the optimizer's state, for each number."""

    @property
    def numel(self) -> int:
        """Numbers of all of them."""
        return sum(self.sizes)

    def padded(self, ranks: int) -> int:
        """Numbers of the flat tensor: a multiple of 2 a rank (runtime/zero/stage_1_and_2.py, nccl_start_alignment_factor)."""
        return math.ceil(self.numel / (2 * ranks)) * 2 * ranks

    def partition(self, ranks: int) -> int:
        """Numbers of a rank's part of the flat tensor."""
        return self.padded(ranks) // ranks

    def sharded(self, ranks: int) -> int:
        """Numbers that a rank of stage 3 holds: of each parameter its part, rounded up."""
        return sum(math.ceil(size / ranks) for size in self.sizes)


def step_groups(layout: Layout, spec: Spec) -> tuple[StepGroup, ...]:
    """The trained parameters by what the step does with them."""
    found: dict[tuple[object, ...], list[Held]] = {}
    for held in layout.trained_ones():
        for name in held.tensor.names():
            found.setdefault(_key(held, name, spec), []).append(held)
    return tuple(
        StepGroup(
            sizes=tuple(held.numel for held in group),
            state_bytes=sum(state_bytes(held, spec.optimizer) for held in group) / sum(held.numel for held in group),
        )
        for group in found.values()
    )


def state_bytes(held: Held, optimizer: OptimizerSection) -> float:
    """Bytes of the optimizer's state of one copy of a parameter, the fp32 master copy aside."""
    shape = held.tensor.shape
    if optimizer.type == "sgd":
        return FLOAT * held.numel if optimizer.momentum else 0.0
    if optimizer.type == "adafactor":
        # A row's and a column's mean of squares in place of every number's.
        return FLOAT * (math.prod(shape[:-1]) + math.prod((*shape[:-2], shape[-1])) if len(shape) > 1 else held.numel)
    if optimizer.type == "adamw_8bit" and is_hidden(held):
        return held.numel * (2 + 2 * FLOAT / BLOCK)
    if optimizer.type == "muon" and is_hidden(held):
        return FLOAT * held.numel
    return 2 * FLOAT * held.numel


def is_hidden(held: Held) -> bool:
    """Whether it is a matrix between a model's first and last layer."""
    return len(held.tensor.shape) > 1 and held.tensor.kind not in ("embedding", "head")


def _key(held: Held, name: str, spec: Spec) -> tuple[object, ...]:
    """What ftcore.model.groups tells parameters apart by."""
    optimizer = spec.optimizer
    group = next((each for each in optimizer.parameter_groups if fnmatchcase(name, each.pattern)), None)
    decays = bool(optimizer.weight_decay) and len(held.tensor.shape) > 1
    of_group = (
        None if group is None else (group.learning_rate, group.weight_decay, group.max_grad_norm, group.pattern if group.max_grad_norm is not None else "")
    )
    by_position = is_hidden(held) if optimizer.type in BY_POSITION else False
    return held.adapter if spec.method.adapters else "", of_group, decays, by_position
