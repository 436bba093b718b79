"""Attach LoRA adapters to a base: one, or several that are trained each as if alone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from peft.utils.save_and_load import set_peft_model_state_dict
from safetensors.torch import load_file

from ftcore.model.targets import check_targets
from ftcore.model.warm_start import load_adapter
from ftcore.spec.adapter_file import ADAPTER_WEIGHTS
from ftcore.spec.errors import SpecError
from ftcore.spec.sections import AdapterSection, MethodSection, TrainSection

COMPUTE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "bf16_autocast": torch.float32}
"""train.precision -> type of the trained parameters beside a frozen base."""
SINGLE = "default"
"""PEFT's name for an adapter that has no other."""


def attach_adapters(base: torch.nn.Module, method: MethodSection, train: TrainSection) -> PeftModel:
    """A PEFT model around `base` with every adapter of `method` trainable, in the compute type, and the first one active.

    The initial values of each adapter come from `train.seed` alone, so that every rank makes the same ones and
    an adapter starts the same whether others are beside it or not; or from `method.adapter_name_or_path`. Raises SpecError for
    targets that the model lacks or LoRA can't adapt, and for an adapter to start from that does not fit.
    """
    check_targets(base, method)
    named = method.adapters or {SINGLE: AdapterSection()}
    _check_names(base, named)
    (first, own), *others = named.items()
    try:
        torch.manual_seed(train.seed)
        model: PeftModel = get_peft_model(base, lora_config(method, own), adapter_name=first)  # type: ignore[arg-type,assignment]
        for name, adapter in others:
            torch.manual_seed(train.seed)
            model.add_adapter(name, lora_config(method, adapter))
    except (ValueError, TypeError) as error:
        raise SpecError(f"PEFT can't adapt this model: {error}", where="method", fix="use target_modules [all-linear]") from error
    for parameter in adapter_parameters(model):
        parameter.requires_grad_(True)
        parameter.data = parameter.data.to(COMPUTE_DTYPES[train.precision])
    if method.adapter_name_or_path:
        for name in named:
            load_adapter(model, name, Path(method.adapter_name_or_path).expanduser())
    return model


def _check_names(base: torch.nn.Module, named: Mapping[str, AdapterSection]) -> None:
    """Raises SpecError for an adapter that is called like a part of the model: PEFT tells the parameters of adapters by their names' parts."""
    parts = {part for name, _ in base.named_parameters() for part in name.split(".")}
    for name in named:
        if name in parts:
            what = f"an adapter can't be called {name}: the model has a module of that name"
            raise SpecError(what, where=f"method.adapters.{name}", fix=f"choose another name, such as adapter_{name}")


def put_on(base: torch.nn.Module, folder: Path, precision: str) -> PeftModel:
    """A PEFT model of `base` with the adapter in `folder`, its parameters in the type that `train.precision` computes them in."""
    model: PeftModel = PeftModel.from_pretrained(base, folder, autocast_adapter_dtype=False)  # type: ignore[arg-type]
    wanted, rounded = COMPUTE_DTYPES[precision], False
    for parameter in adapter_parameters(model):
        rounded = rounded or parameter.dtype.itemsize < wanted.itemsize
        parameter.data = parameter.data.to(wanted)
    if rounded:
        # PEFT has read the values into the type that the base's layers compute in, which may be a coarser one.
        with torch.no_grad():
            set_peft_model_state_dict(model, load_file(folder / ADAPTER_WEIGHTS))
    return model


def lora_config(method: MethodSection, adapter: AdapterSection) -> LoraConfig:
    """PEFT's configuration of one adapter: what it says itself, else what the method says."""
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=method.r if adapter.r is None else adapter.r,
        lora_alpha=method.lora_alpha if adapter.lora_alpha is None else adapter.lora_alpha,  # type: ignore[arg-type]
        lora_dropout=method.lora_dropout,
        use_rslora=method.use_rslora,
        use_dora=method.use_dora,
        target_modules="all-linear" if method.target_modules == ("all-linear",) else list(method.target_modules),
        modules_to_save=list(method.modules_to_save) or None,
    )


def adapter_parameters(model: PeftModel) -> list[torch.nn.Parameter]:
    """The parameters of all adapters, and the copies of modules that are trained whole."""
    found: dict[int, torch.nn.Parameter] = {}
    for holder in _holders(model):
        for kind in (*holder.adapter_layer_names, *getattr(holder, "other_param_names", ())):
            inner = getattr(holder, kind, None)
            if isinstance(inner, (torch.nn.ModuleDict, torch.nn.ParameterDict)):
                found |= {id(parameter): parameter for parameter in inner.parameters()}
    return list(found.values())


def adapter_names(model: torch.nn.Module) -> tuple[str, ...]:
    """Names of the adapters when there are several, in the order of the spec; () for one adapter or none."""
    names = tuple(model.peft_config) if isinstance(model, PeftModel) else ()
    return names if len(names) > 1 else ()


def activate(model: torch.nn.Module, name: str) -> None:
    """Makes the forward pass use adapter `name` alone. Which parameters are trained stays: DeepSpeed's hooks rest on that.

    PEFT's own set_adapter freezes the others.
    """
    if isinstance(model, PeftModel):
        model.active_adapter = name
        for holder in _holders(model):
            holder._active_adapter = name if isinstance(holder, AuxiliaryTrainingWrapper) else [name]


def adapter_of(parameter_name: str, names: tuple[str, ...]) -> str:
    """Which of `names` a parameter, by its name in the PEFT model, belongs to; empty when to none."""
    parts = parameter_name.split(".")
    return next((name for name in names if name in parts and _follows_an_adapter_kind(parts, name)), "")


def _follows_an_adapter_kind(parts: list[str], name: str) -> bool:
    return any(kind.startswith("lora_") or kind == "modules_to_save" for kind, part in pairwise(parts) if part == name)


def _holders(model: torch.nn.Module) -> list[BaseTunerLayer | AuxiliaryTrainingWrapper]:
    return [module for module in model.modules() if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper))]
