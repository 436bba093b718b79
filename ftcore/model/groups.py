"""Trained parameters in the groups that the optimizer steps: by pattern, by adapter, and decayed or not."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from ftcore.model.adapters import adapter_of
from ftcore.spec.errors import Problem, SpecError
from ftcore.spec.sections import OptimizerSection, ParameterGroup, Spec

TorchGroup = dict[str, Any]
"""What torch.optim takes: {"params", "weight_decay"}, and for the step

- "lr_scale": this group's highest learning rate / optimizer.learning_rate,
- "name": torch groups of one name are clipped together, by the norm over all of their parameters,
- "max_grad_norm": to which that norm is clipped; 0 never clips,
- "is_hidden": its parameters are matrices between a model's first and last layer, which muon and adamw_8bit step otherwise than the rest.
"""
BY_POSITION = ("adamw_8bit", "muon")
"""Types of optimizer that look at where a parameter stands in the model."""
COMMON = "default"
"""Name of the groups that are clipped by the norm over everything that has no limit of its own."""
WHERE = "optimizer.parameter_groups"


@dataclass(frozen=True, slots=True)
class _Rule:
    """What the groups of one clipping name, learning rate and decay have in common."""

    name: str
    lr_scale: float
    weight_decay: float
    max_grad_norm: float
    is_hidden: bool


def freeze_matching(model: torch.nn.Module, optimizer: OptimizerSection) -> None:
    """Freezes what the groups with `freeze` match; before the engine exists, which looks at requires_grad once.

    Raises SpecError naming every pattern that matches no trained parameter, or none that an earlier one has not taken;
    for frozen parts of an adapter, which no checkpoint would hold; and when nothing is left to train.
    """
    taken: dict[int, int] = {}
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    problems: list[Problem] = []
    for name in trained:
        index = _first_match(name, optimizer)
        if index is not None:
            taken[index] = taken.get(index, 0) + 1
    for index, group in enumerate(optimizer.parameter_groups):
        if index not in taken:
            problems.append(_unmatched(group, index, trained))
    frozen = [name for name in trained if (index := _first_match(name, optimizer)) is not None and optimizer.parameter_groups[index].freeze]
    ours = [name for name in frozen if ".lora_" in name or ".modules_to_save." in name]
    if ours:
        what = f"{ours[0]} is part of an adapter; checkpoints hold what is trained, so it would be lost"
        problems.append(Problem(what=what, where=WHERE, fix="give the group learning_rate 0 instead of freeze"))
    elif len(frozen) == len(trained):
        problems.append(Problem(what="every trained parameter is frozen: nothing is left to train", where=WHERE, fix="freeze less"))
    if problems:
        raise SpecError(problems)
    for name in frozen:
        trained[name].requires_grad_(False)


def parameter_groups(model: torch.nn.Module, spec: Spec) -> list[TorchGroup]:
    """The trained parameters of `model` as torch groups, in the same order on every rank.

    Matrices get the weight decay of optimizer, biases and norms none, unless their pattern says what all of its parameters get.
    """
    adapters = tuple(spec.method.adapters)
    ends = first_and_last(model) if spec.optimizer.type in BY_POSITION else frozenset()
    groups: dict[_Rule, list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_hidden = spec.optimizer.type in BY_POSITION and _dimensions(parameter) > 1 and id(parameter) not in ends
            rule = _rule_of(name, parameter, spec, adapter=adapter_of(name, adapters), is_hidden=is_hidden)
            groups.setdefault(rule, []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": rule.weight_decay,
            "lr_scale": rule.lr_scale,
            "name": rule.name,
            "max_grad_norm": rule.max_grad_norm,
            "is_hidden": rule.is_hidden,
        }
        for rule, parameters in groups.items()
    ]


def first_and_last(model: torch.nn.Module) -> frozenset[int]:
    """Ids of the parameters of embeddings and of the output head, and of adapters of them."""
    modules = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    head = getattr(model, "get_output_embeddings", lambda: None)()
    modules += [head] if head is not None else []
    adapted = [parameter for name, parameter in model.named_parameters() if ".lora_embedding_" in name]
    return frozenset(id(parameter) for parameter in (*adapted, *(each for module in modules for each in module.parameters())))


def _dimensions(parameter: torch.nn.Parameter) -> int:
    # A parameter that ZeRO-3 has partitioned hides its shape.
    return len(getattr(parameter, "ds_shape", parameter.shape))


def _rule_of(name: str, parameter: torch.nn.Parameter, spec: Spec, *, adapter: str, is_hidden: bool) -> _Rule:
    """An adapter beside others is clipped by its own norm, as it would be alone."""
    optimizer = spec.optimizer
    index = _first_match(name, optimizer)
    group = None if index is None else optimizer.parameter_groups[index]
    decay = optimizer.weight_decay if _dimensions(parameter) > 1 else 0.0
    rate = spec.method.adapters[adapter].learning_rate if adapter else None
    clip, own = optimizer.max_grad_norm, COMMON
    if group is not None:
        decay = decay if group.weight_decay is None else group.weight_decay
        rate = rate if group.learning_rate is None else group.learning_rate
        if group.max_grad_norm is not None:
            clip, own = group.max_grad_norm, group.pattern
    scale = 1.0 if rate is None else rate / optimizer.learning_rate
    return _Rule(name=f"{adapter}/{own}" if adapter else own, lr_scale=scale, weight_decay=decay, max_grad_norm=clip, is_hidden=is_hidden)


def _first_match(name: str, optimizer: OptimizerSection) -> int | None:
    return next((index for index, group in enumerate(optimizer.parameter_groups) if fnmatchcase(name, group.pattern)), None)


def _unmatched(group: ParameterGroup, index: int, trained: dict[str, torch.nn.Parameter]) -> Problem:
    matching = [name for name in trained if fnmatchcase(name, group.pattern)]
    if matching:
        what = f"everything that {group.pattern!r} matches is matched by an earlier group, {matching[0]} first"
        return Problem(what=what, where=f"{WHERE}[{index}].pattern", fix="put the narrower pattern first")
    example = next(iter(trained), "none")
    what = f"{group.pattern!r} matches no trained parameter; one is called {example}"
    return Problem(what=what, where=f"{WHERE}[{index}].pattern", fix="write * for any text, as in *.lora_B.* or *embed_tokens*")
