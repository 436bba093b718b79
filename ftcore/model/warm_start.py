"""Start from an adapter that an export or PEFT wrote."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import LoraConfig, PeftModel
from peft.utils.save_and_load import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file

from ftcore.spec.adapter_file import ADAPTER_WEIGHTS, ADAPTER_WHERE, read_adapter_file
from ftcore.spec.errors import Problem, SpecError
from ftcore.weight_files import safetensors_shapes


def load_adapter(model: PeftModel, name: str, folder: Path) -> None:
    """Puts the values of the adapter in `folder` into the adapter `name` of `model`; on torch's meta device only checks that they fit.

    Raises SpecError naming everything that differs: rank, scale, kind, and every tensor that one side lacks or has in another shape.
    """
    found = read_adapter_file(folder)
    config = model.peft_config[name]
    problems = _other_settings(found.settings(), config) if isinstance(config, LoraConfig) else []
    weights = folder / ADAPTER_WEIGHTS
    stored = safetensors_shapes(weights)
    own = {key: tuple(getattr(value, "ds_shape", value.shape)) for key, value in get_peft_model_state_dict(model, adapter_name=name).items()}
    problems += _other_tensors(stored, own, folder)
    if problems:
        raise SpecError(problems)
    if not any(parameter.is_meta for parameter in model.parameters()):
        with torch.no_grad():
            set_peft_model_state_dict(model, load_file(weights), adapter_name=name)


def _other_settings(found: dict[str, object], config: LoraConfig) -> list[Problem]:
    asked = {"r": config.r, "lora_alpha": config.lora_alpha, "use_rslora": config.use_rslora, "use_dora": config.use_dora}
    return [
        Problem(what=f"the spec says {value!r}, the adapter to start from has {found[key]!r}", where=f"method.{key}", fix=f"set method.{key} to {found[key]}")
        for key, value in asked.items()
        if key in found and found[key] != value
    ]


def _other_tensors(stored: dict[str, tuple[int, ...]], own: dict[str, tuple[int, ...]], folder: Path) -> list[Problem]:
    lacking, unknown = sorted(own.keys() - stored.keys()), sorted(stored.keys() - own.keys())
    other = sorted(key for key in own.keys() & stored.keys() if own[key] != stored[key])
    problems = []
    if lacking:
        problems.append(f"{folder} lacks {len(lacking)} tensors of this method, the first is {lacking[0]}")
    if unknown:
        problems.append(f"{folder} holds {len(unknown)} tensors that this method has no place for, the first is {unknown[0]}")
    if other:
        first = other[0]
        problems.append(f"{len(other)} tensors of {folder} have another shape, the first is {first}: {stored[first]} there, {own[first]} here")
    fix = "use the adapter's own base model, target_modules and modules_to_save"
    return [Problem(what=what, where=ADAPTER_WHERE, fix=fix) for what in problems]
