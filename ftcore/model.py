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

from ftcore import attention
from ftcore.data.prepared import ModelSource
from ftcore.spec.errors import SpecError
from ftcore.spec.sections import MethodSection, ModelSection, Spec, TrainSection

ParameterGroup = dict[str, Any]
"""{"params": [parameters], "weight_decay": float}: what torch.optim takes."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
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
    """The pretrained model in `model.dtype`, without a cache and with attention that keeps packed samples apart."""
    implementation = attention.NAME if model.attn_implementation == "sdpa" else model.attn_implementation
    base = AutoModelForCausalLM.from_pretrained(
        source.path,
        dtype=DTYPES[str(model.dtype)],
        attn_implementation=implementation,
        trust_remote_code=source.trust_remote_code,
    )
    base.config.use_cache = False
    return base


def attach_method(base: PreTrainedModel, method: MethodSection, train: TrainSection) -> torch.nn.Module:
    """The model to train: `base` itself for full, a PEFT model with trainable parameters in the compute type for lora.

    The adapter's initial values come from `train.seed`, so that every rank makes the same ones.
    """
    if method.type == "full":
        model: torch.nn.Module = base
    else:
        check_targets(base, method)
        torch.manual_seed(train.seed)
        targets = "all-linear" if method.target_modules == ("all-linear",) else list(method.target_modules)
        model = get_peft_model(
            base,
            LoraConfig(
                task_type="CAUSAL_LM",
                r=method.r,
                lora_alpha=method.lora_alpha,
                lora_dropout=method.lora_dropout,
                target_modules=targets,
                modules_to_save=list(method.modules_to_save) or None,
            ),
        )
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(COMPUTE_DTYPES[train.precision])
    if train.gradient_checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def check_targets(base: torch.nn.Module, method: MethodSection) -> Counter[str]:
    """How many modules each LoRA target matches. Raises SpecError naming every target that matches none."""
    names = [name for name, _ in base.named_modules()]
    wanted = [target for target in (*method.target_modules, *method.modules_to_save) if target != "all-linear"]
    matches = Counter({target: sum(name == target or name.endswith(f".{target}") for name in names) for target in wanted})
    missing = [target for target in wanted if not matches[target]]
    if missing:
        linear = sorted({name.rsplit(".", 1)[-1] for name, module in base.named_modules() if isinstance(module, torch.nn.Linear)})
        raise SpecError(
            f"no module of the model is called {', '.join(missing)}; its linear layers are {', '.join(linear)}",
            where="method.target_modules" if set(missing) & set(method.target_modules) else "method.modules_to_save",
            fix="correct the names, or use [all-linear]",
        )
    return matches


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
