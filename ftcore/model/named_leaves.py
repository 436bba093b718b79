"""Whether the modules that DeepSpeed is to gather whole are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ftcore.spec.errors import SpecError

WHERE = "zero.overrides.zero_optimization.leaf_module"
SHOWN = 6
"""Classes in a message."""


def named_leaves(overrides: Mapping[str, Any]) -> dict[str, list[str]]:
    """What zero.overrides says of leaf_module, as deepspeed/runtime/zero/leaf_module_config.py has it: classes, names and name_suffixes."""
    zero = overrides.get("zero_optimization")
    leaf = zero.get("leaf_module") if isinstance(zero, Mapping) else None
    given = leaf if isinstance(leaf, Mapping) else {}
    return {kind: [str(entry) for entry in given.get(kind, ())] for kind in ("classes", "names", "name_suffixes")}


def check_named_leaves(model: torch.nn.Module, overrides: Mapping[str, Any]) -> None:
    """Raises SpecError when nothing of leaf_module is in `model`: DeepSpeed would pass over all of it, and gather the parts one by one.

    One that fits is enough: files for DeepSpeed list the classes of many families.
    """
    asked = named_leaves(overrides)
    given = [entry for entries in asked.values() for entry in entries]
    kinds = {type(module) for module in model.modules()}
    classes = {kind.__name__ for kind in kinds} | {f"{kind.__module__}.{kind.__qualname__}" for kind in kinds}
    names = [name for name, _ in model.named_modules()]
    fits = classes.intersection(asked["classes"]) or set(names).intersection(asked["names"])
    if not given or fits or any(name.endswith(suffix) for name in names for suffix in asked["name_suffixes"]):
        return
    own = sorted({kind.__name__ for kind in kinds if kind.__module__.startswith("transformers")})
    more = f" and {len(own) - SHOWN} more" if len(own) > SHOWN else ""
    fix = f"its classes are {', '.join(own[:SHOWN])}{more}; or remove it"
    raise SpecError(f"the model has no module of {', '.join(given)}", where=WHERE, fix=fix)
