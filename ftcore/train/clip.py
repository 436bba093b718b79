"""Which parameters are clipped together, where they are not all clipped by one norm."""

from __future__ import annotations

from collections.abc import Sequence

from ftcore.engine import Engine
from ftcore.spec.sections import Spec
from ftcore.train.step import ClipGroups


def clip_groups(engine: Engine, spec: Spec) -> ClipGroups | None:
    """The groups of the optimizer by their `name`, each with its `max_grad_norm`; None where DeepSpeed clips the global norm.

    That is so unless a parameter group has a limit of its own, several adapters are each trained as if alone, or the step is not along
    the gradient (muon): launcher.ds_config writes gradient_clipping accordingly.
    """
    limits = {group.max_grad_norm for group in spec.optimizer.parameter_groups}
    if limits <= {None} and not spec.method.adapters and spec.optimizer.type != "muon":
        return None
    numbers: dict[str, int] = {}
    by_number: list[float] = []
    group_of: dict[str, int] = {}
    for name, group in engine.named_groups():
        clip = str(group["name"])
        if clip not in numbers:
            numbers[clip] = len(by_number)
            by_number.append(float(group["max_grad_norm"]))
        group_of[name] = numbers[clip]
    return ClipGroups(group_of, tuple(by_number), tuple(numbers))


def was_clipped(norms: Sequence[float], groups: ClipGroups | None, max_grad_norm: float) -> bool:
    """Whether an update was scaled down: a norm of `groups` was over its limit, or the global one (the only norm then) over `max_grad_norm`."""
    limits = groups.limits if groups is not None else (max_grad_norm,)
    return any(limit and norm > limit for norm, limit in zip(norms, limits, strict=True))
