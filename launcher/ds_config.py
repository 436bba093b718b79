"""The DeepSpeed configuration of a run: preset + spec + number of ranks + zero.overrides, as the text that the engine reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import OptimizerSection, Spec, ZeroSection
from launcher.ds_json.keys import stages_of, stages_of_zero_keys

PRESETS = Path(__file__).resolve().parent.parent / "ds_configs"
"""Beside the launcher in a clone and in site-packages alike; importlib.resources can't see a folder without __init__ in an editable install."""

FP16 = {"enabled": True, "auto_cast": False, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1}
"""A loss_scale of 0 is a dynamic one."""


def render_ds_config(resolved: ResolvedSpec) -> str:
    """The text of RUN/ds_config.json."""
    return json.dumps(build_ds_config(resolved), indent=2, ensure_ascii=False) + "\n"


def build_ds_config(resolved: ResolvedSpec) -> dict[str, Any]:
    """What DeepSpeed gets: complete, no "auto".

    Later parts win: the preset, what the spec decides, and zero.overrides, which validation has kept off the spec's own keys.
    What has no effect in the run's stage is left out: a run that goes on in another stage keeps its spec.
    """
    spec = resolved.spec
    config = load_preset(preset_name(spec.zero))
    merge_deeply(config, _decided(resolved))
    _write_offload(config["zero_optimization"], spec.zero)
    merge_deeply(config, spec.zero.overrides)
    zero = config["zero_optimization"]
    config["zero_optimization"] = {key: value for key, value in zero.items() if spec.zero.stage in stages_of(key)}
    return config


def preset_name(zero: ZeroSection) -> str:
    """The file in ds_configs/ (without .json) that a stage and its offload start from."""
    devices = {zero.offload_optimizer, zero.offload_param} - {"none"}
    if not devices:
        return f"zero{zero.stage}"
    return f"zero{zero.stage}_{'nvme' if 'nvme' in devices else 'offload'}"


def load_preset(name: str) -> dict[str, Any]:
    """The preset as plain data."""
    preset: dict[str, Any] = json.loads((PRESETS / f"{name}.json").read_text(encoding="utf-8"))
    return preset


def merge_deeply(base: dict[str, Any], over: dict[str, Any]) -> None:
    """Puts `over` over `base` in place: mappings key by key, anything else whole."""
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            merge_deeply(base[key], value)
        else:
            base[key] = value


def _decided(resolved: ResolvedSpec) -> dict[str, Any]:
    """What follows from the spec and the number of ranks, whatever the preset.

    The sizes are those of one sample a rank: ftlaunch cuts updates itself and tells DeepSpeed which micro-step is the last one.
    """
    spec = resolved.spec
    precision = spec.train.precision
    decided: dict[str, Any] = {
        "train_batch_size": resolved.world_size,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        # Left out, DeepSpeed would clip at 1.0.
        "gradient_clipping": 0.0 if clips_by_group(spec) else spec.optimizer.max_grad_norm,
        "zero_allow_untested_optimizer": spec.optimizer.type != "adamw",
        "bf16": {"enabled": precision == "bf16"},
        "zero_optimization": {"stage": spec.zero.stage, **_zero_keys(spec.zero)},
    }
    if spec.optimizer.type in ("adamw", "sgd"):
        decided["optimizer"] = _optimizer(spec.optimizer)
    else:
        # ftcore.optimizers makes it; DeepSpeed would refuse to keep the state of one that it does not know in host memory.
        decided["zero_force_ds_cpu_optimizer"] = False
    if precision == "fp16":
        decided["fp16"] = dict(FP16)
    if precision == "bf16_autocast":
        decided["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    if spec.train.keep_in_fp32:
        decided["data_types"] = {"keep_in_fp32_modules": list(spec.train.keep_in_fp32)}
    return decided


def clips_by_group(spec: Spec) -> bool:
    """Whether norms are clipped by ftlaunch, a group at a time; else DeepSpeed clips the norm over all parameters."""
    return bool(spec.method.adapters) or spec.optimizer.type == "muon" or any(group.max_grad_norm is not None for group in spec.optimizer.parameter_groups)


def _optimizer(optimizer: OptimizerSection) -> dict[str, Any]:
    if optimizer.type == "sgd":
        params = {"lr": optimizer.learning_rate, "momentum": optimizer.momentum, "weight_decay": optimizer.weight_decay}
        return {"type": "SGD", "params": params}
    return {
        "type": "AdamW",
        "params": {
            "lr": optimizer.learning_rate,
            "betas": [optimizer.adam_beta1, optimizer.adam_beta2],
            "eps": optimizer.adam_epsilon,
            "weight_decay": optimizer.weight_decay,
            # torch's AdamW: DeepSpeed's own is compiled at the first start.
            "torch_adam": True,
            "fused": True,
        },
    }


def _zero_keys(zero: ZeroSection) -> dict[str, Any]:
    """What the spec says of DeepSpeed's buckets, of what is gathered, and of ZeRO++; a key that is null is the preset's."""
    given = {name: getattr(zero, name) for name in stages_of_zero_keys()}
    return {name: value for name, value in given.items() if value is not None}


def _write_offload(config: dict[str, Any], zero: ZeroSection) -> None:
    """Leaves in the preset's zero_optimization only the offload that is asked for, on the device asked for."""
    for key, device in (("offload_optimizer", zero.offload_optimizer), ("offload_param", zero.offload_param)):
        if device == "none":
            config.pop(key, None)
            continue
        config[key]["device"] = device
        if device == "nvme":
            config[key]["nvme_path"] = zero.nvme_path
        else:
            config[key].pop("nvme_path", None)
