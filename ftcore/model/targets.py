"""Which modules of a base model can be adapted, and which be trained whole beside adapters."""

from __future__ import annotations

from collections import Counter

import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ftcore.spec.errors import Problem, SpecError
from ftcore.spec.sections import MethodSection

ADAPTABLE = (torch.nn.Linear, torch.nn.Embedding, torch.nn.Conv1d, torch.nn.Conv2d, Conv1D)
"""Types of modules that LoRA can adapt."""
CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList, torch.nn.ParameterDict)


def check_targets(base: torch.nn.Module, method: MethodSection) -> Counter[str]:
    """How many modules each LoRA target matches. Raises SpecError naming every target that matches none, or one of the wrong type."""
    wanted = [target for target in (*method.target_modules, *method.modules_to_save) if target != "all-linear"]
    found = {target: _called(base, target) for target in wanted}
    problems = _missing(base, method, [target for target in wanted if not found[target]])
    for target in method.target_modules:
        unfit = sorted({type(module).__name__ for module in found.get(target, ()) if not isinstance(module, ADAPTABLE)})
        if unfit:
            what = f"{target} is a {', '.join(unfit)}, and LoRA adapts linear, embedding and convolution layers only"
            problems.append(Problem(what=what, where="method.target_modules", fix="name such layers, or use [all-linear]"))
    for target in method.modules_to_save:
        reasons = {reason for module in found[target] if (reason := _why_not_whole(base, module, method))}
        if reasons:
            what = f"{target} can't be trained whole beside adapters: {', '.join(sorted(reasons))}"
            problems.append(Problem(what=what, where="method.modules_to_save", fix="name single layers, such as lm_head, embed_tokens or norm"))
    if problems:
        raise SpecError(problems)
    return Counter({target: len(modules) for target, modules in found.items()})


def _missing(base: torch.nn.Module, method: MethodSection, missing: list[str]) -> list[Problem]:
    if not missing:
        return []
    linear = sorted({name.rsplit(".", 1)[-1] for name, module in base.named_modules() if isinstance(module, torch.nn.Linear)})
    return [
        Problem(
            what=f"no module of the model is called {', '.join(missing)}; its linear layers are {', '.join(linear)}",
            where="method.target_modules" if set(missing) & set(method.target_modules) else "method.modules_to_save",
            fix="correct the names, or use [all-linear]",
        )
    ]


def _called(base: torch.nn.Module, target: str) -> list[torch.nn.Module]:
    """The modules whose name, or its last parts, is `target`: what PEFT matches."""
    return [module for name, module in base.named_modules() if name == target or name.endswith(f".{target}")]


def _why_not_whole(base: torch.nn.Module, module: torch.nn.Module, method: MethodSection) -> str:
    """Why PEFT can't copy `module` whole, or would copy the layers that get adapters with it; empty when it can."""
    if any(isinstance(part, CONTAINERS) for part in module.modules()):
        return f"{type(module).__name__} holds the layers of the model"
    if any(True for child in module.children() for _ in child.parameters()):
        return f"{type(module).__name__} is made of other layers"
    if not any(True for _ in module.parameters()):
        return f"{type(module).__name__} has no parameters"
    head = base.get_output_embeddings() if isinstance(base, PreTrainedModel) else None
    if method.type == "qlora" and isinstance(module, torch.nn.Linear) and module is not head:
        return f"qlora holds it in {method.bits} bits"
    return ""
