"""Modules that compute in fp32 beside others in bf16: those of the parameters that a group keeps in fp32, under train.precision bf16_autocast.

DeepSpeed holds every parameter in the type of its engine: under bf16 and fp16 it casts them all before anything is partitioned
(runtime/engine.py: _cast_module_mixed_precision), and data_types.keep_in_fp32_modules spares buffers alone. Where autocast
does the computing, parameters are fp32 in any case, and a module is kept from it.
"""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase
from typing import Any

import torch

from ftcore.spec.sections import OptimizerSection


def compute_in_fp32(model: torch.nn.Module, optimizer: OptimizerSection) -> list[str]:
    """Takes the modules whose parameters a group with `keep_in_fp32` matches out of autocast, tied ones too; their names.

    To be called before the engine is made: DeepSpeed sends the weights and gradients of torch.nn.Linear, of that very class, in bf16
    under autocast (runtime/torch_autocast.py: init_autocast_params). These modules get a class of their own, so that theirs stay fp32.
    """
    if not any(group.keep_in_fp32 for group in optimizer.parameter_groups):
        return []
    kept = {id(parameter) for name, parameter in model.named_parameters() if parameter.requires_grad and _is_kept(name, optimizer)}
    chosen = []
    for name, module in model.named_modules():
        if any(id(parameter) in kept for parameter in module.parameters(recurse=False)):
            module.__class__ = _in_fp32(type(module))
            chosen.append(name)
    return chosen


def _is_kept(name: str, optimizer: OptimizerSection) -> bool:
    first = next((group for group in optimizer.parameter_groups if fnmatchcase(name, group.pattern)), None)
    return first is not None and first.keep_in_fp32


@functools.cache
def _in_fp32(kind: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """The class `kind`, outside of autocast and on widened inputs."""

    def forward(self: torch.nn.Module, *arguments: Any, **keywords: Any) -> Any:
        devices = [value.device.type for value in (*arguments, *keywords.values()) if torch.is_tensor(value)]
        with torch.autocast(devices[0] if devices else "cpu", enabled=False):
            return kind.forward(self, *map(_widened, arguments), **{name: _widened(value) for name, value in keywords.items()})

    return type(f"{kind.__name__}InFp32", (kind,), {"forward": forward})


def _widened(value: Any) -> Any:
    return value.float() if torch.is_tensor(value) and value.dtype in (torch.bfloat16, torch.float16) else value
