"""Load the base model, attach adapters, choose what is trained and how it is grouped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ftcore import attention
from ftcore.data.prepared import ModelSource
from ftcore.spec.errors import Problem, SpecError
from ftcore.spec.sections import MethodSection, ModelSection, Spec, TrainSection
from ftcore.weight_files import tensors_that_do_not_fit

ParameterGroup = dict[str, Any]
"""{"params": [parameters], "weight_decay": float}: what torch.optim takes."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ADAPTABLE = (torch.nn.Linear, torch.nn.Embedding, torch.nn.Conv1d, torch.nn.Conv2d, Conv1D)
"""Types of modules that LoRA can adapt."""
CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList, torch.nn.ParameterDict)
COMPUTE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@contextmanager
def partitioned_loading(ds_config: Path) -> Iterator[None]:
    """Inside, from_pretrained partitions the weights as it reads them when `ds_config` is of ZeRO stage 3.

    transformers looks for a live HfDeepSpeedConfig object; one that nobody holds is gone at once, and
    every rank would then load the whole model without a word.
    """
    config = json.loads(ds_config.read_text(encoding="utf-8"))
    if config["zero_optimization"]["stage"] != 3:
        yield
        return
    from transformers.integrations import HfDeepSpeedConfig

    held = HfDeepSpeedConfig(config)
    try:
        yield
    finally:
        del held


def load_base(model: ModelSection, source: ModelSource) -> PreTrainedModel:
    """The pretrained model in `model.dtype`, without a cache and with attention that keeps packed samples apart.

    Raises SpecError when the files lack a weight of the model, or hold one of another shape.
    """
    implementation = attention.NAME if model.attn_implementation == "sdpa" else model.attn_implementation
    base, info = AutoModelForCausalLM.from_pretrained(
        source.path,
        dtype=DTYPES[str(model.dtype)],
        attn_implementation=implementation,
        trust_remote_code=source.trust_remote_code,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # reported in `info` then, with the names, and refused below
    )
    require_all_weights(info, source)
    base.config.use_cache = False
    return base


def require_all_weights(info: dict[str, Any], source: ModelSource) -> None:
    """Raises SpecError when transformers' loading information names weights that were missing or of another shape."""
    wrong = tensors_that_do_not_fit(info)
    if wrong:
        raise SpecError(f"{source.name} is not whole: {wrong}", where="model.model_name_or_path", fix="download or copy the model again")


def attach_method(base: PreTrainedModel, method: MethodSection, train: TrainSection) -> torch.nn.Module:
    """The model to train: `base` itself for full, a PEFT model with trainable parameters in the compute type for lora.

    The adapter's initial values come from `train.seed`, so that every rank makes the same ones. Raises SpecError
    for targets that the model lacks or LoRA can't adapt.
    """
    if method.type == "full":
        model: torch.nn.Module = base
    else:
        check_targets(base, method)
        torch.manual_seed(train.seed)
        targets = "all-linear" if method.target_modules == ("all-linear",) else list(method.target_modules)
        config = LoraConfig(
            task_type="CAUSAL_LM",
            r=method.r,
            lora_alpha=method.lora_alpha,
            lora_dropout=method.lora_dropout,
            target_modules=targets,
            modules_to_save=list(method.modules_to_save) or None,
        )
        try:
            model = get_peft_model(base, config)
        except (ValueError, TypeError) as error:
            raise SpecError(f"PEFT can't adapt this model: {error}", where="method", fix="use target_modules [all-linear]") from error
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(COMPUTE_DTYPES[train.precision])
    if train.gradient_checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def check_targets(base: torch.nn.Module, method: MethodSection) -> Counter[str]:
    """How many modules each LoRA target matches. Raises SpecError naming every target that matches none, or one of the wrong type."""
    wanted = [target for target in (*method.target_modules, *method.modules_to_save) if target != "all-linear"]
    found = {target: _called(base, target) for target in wanted}
    missing = [target for target in wanted if not found[target]]
    problems = []
    if missing:
        linear = sorted({name.rsplit(".", 1)[-1] for name, module in base.named_modules() if isinstance(module, torch.nn.Linear)})
        problems.append(
            Problem(
                what=f"no module of the model is called {', '.join(missing)}; its linear layers are {', '.join(linear)}",
                where="method.target_modules" if set(missing) & set(method.target_modules) else "method.modules_to_save",
                fix="correct the names, or use [all-linear]",
            )
        )
    for target in method.target_modules:
        unfit = sorted({type(module).__name__ for module in found.get(target, ()) if not isinstance(module, ADAPTABLE)})
        if unfit:
            what = f"{target} is a {', '.join(unfit)}, and LoRA adapts linear, embedding and convolution layers only"
            problems.append(Problem(what=what, where="method.target_modules", fix="name such layers, or use [all-linear]"))
    for target in method.modules_to_save:
        reasons = {reason for module in found[target] if (reason := _why_not_whole(module))}
        if reasons:
            what = f"{target} can't be trained whole beside adapters: {', '.join(sorted(reasons))}"
            problems.append(Problem(what=what, where="method.modules_to_save", fix="name single layers, such as lm_head, embed_tokens or norm"))
    if problems:
        raise SpecError(problems)
    return Counter({target: len(modules) for target, modules in found.items()})


def _called(base: torch.nn.Module, target: str) -> list[torch.nn.Module]:
    """The modules whose name, or its last parts, is `target`: what PEFT matches."""
    return [module for name, module in base.named_modules() if name == target or name.endswith(f".{target}")]


def _why_not_whole(module: torch.nn.Module) -> str:
    """Why PEFT can't copy `module` whole, or would copy the layers that get adapters with it; empty when it can."""
    if any(isinstance(part, CONTAINERS) for part in module.modules()):
        return f"{type(module).__name__} holds the layers of the model"
    if any(True for child in module.children() for _ in child.parameters()):
        return f"{type(module).__name__} is made of other layers"
    return "" if any(True for _ in module.parameters()) else f"{type(module).__name__} has no parameters"


def parameter_groups(model: torch.nn.Module, weight_decay: float) -> list[ParameterGroup]:
    """Trainable parameters in two groups: matrices with `weight_decay`, biases and norms without.

    A parameter that ZeRO-3 has partitioned hides its shape; `ds_shape` holds it.
    """
    matrices, vectors = [], []
    for parameter in model.parameters():
        if parameter.requires_grad:
            shape = getattr(parameter, "ds_shape", parameter.shape)
            (matrices if len(shape) > 1 else vectors).append(parameter)
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def build_model(spec: Spec, source: ModelSource, ds_config: Path) -> torch.nn.Module:
    """The model to train, loaded partitioned in ZeRO stage 3. Needs the process group to exist there."""
    with partitioned_loading(ds_config):
        return attach_method(load_base(spec.model, source), spec.method, spec.train)
