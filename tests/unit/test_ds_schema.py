"""Our schema of DeepSpeed's keys against the installed package's own lists: constants, pydantic fields, and what its code asks a configuration for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from ftcore.spec.sections import Spec, ZeroSection
from launcher.ds_json.keys import DS_SCHEMA, json_schema, keys_of_spec, overrides_schema, rule_at, stages_of_zero_keys
from launcher.schema_check import SPEC_SCHEMA, load_schema

SCHEMA = load_schema(DS_SCHEMA)


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


def keys(*path: str) -> set[str]:
    rule = rule_at(path)
    assert rule is not None
    return set(rule["properties"])


def fields(model: Any) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def test_top_level_keys_that_deepspeed_asks_for() -> None:
    """Each name in DeepSpeed's `param_dict.get("...")`, `get_scalar_param(param_dict, NAME, ...)` and `NAME in param_dict`."""
    from deepspeed.runtime import config, constants

    source = inspect.getsource(config)
    names = set(re.findall(r"get_scalar_param\(\s*param_dict,\s*([A-Z_]+)", source)) | set(re.findall(r"\b([A-Z_]+) in param_dict(?![\[\w])", source))
    asked = {getattr(config, name) for name in names} | set(re.findall(r"param_dict(?:\.get\(|\[)['\"](\w+)", source))
    assert len(asked) > 25
    others = ("CHECKPOINT", "DATA_TYPES", "COMMUNICATION_DATA_TYPE", "SEQ_PARALLEL_COMMUNICATION_DATA_TYPE", "FP16", "BFLOAT16")
    known = {getattr(constants, name) for name in others}
    removed = set(config._REMOVED_TOP_LEVEL_CONFIG_KEYS)
    assert asked | known | removed <= set(SCHEMA["properties"]), (asked | known | removed) - set(SCHEMA["properties"])


def test_keys_of_zero_optimization() -> None:
    from deepspeed.runtime import config
    from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
    from deepspeed.runtime.zero import config as zero
    from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig

    assert fields(zero.DeepSpeedZeroConfig) | set(config._REMOVED_ZERO_CONFIG_KEYS) <= keys("zero_optimization")
    blocks = {
        "offload_param": zero.DeepSpeedZeroOffloadParamConfig,
        "offload_optimizer": zero.DeepSpeedZeroOffloadOptimizerConfig,
        "leaf_module": DeepSpeedZeroLeafModuleConfig,
        "zenflow": ZenFlowConfig,
    }
    for block, model in blocks.items():
        assert fields(model) <= keys("zero_optimization", block), block


def test_keys_of_the_other_models() -> None:
    from deepspeed.compile.config import CompileConfig
    from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

    models: dict[tuple[str, ...], Any] = {
        ("fp16",): DeepSpeedFP16Config,
        ("bf16",): DeepSpeedBF16Config,
        ("compile",): CompileConfig,
        ("tensorboard",): TensorBoardConfig,
        ("wandb",): WandbConfig,
        ("csv_monitor",): CSVConfig,
        ("comet",): CometConfig,
        ("tensor_parallel",): TPTrainingConfig,
        ("timers", "throughput"): DeepSpeedThroughputTimerConfig,
    }
    for path, model in models.items():
        assert fields(model) <= keys(*path), (path, fields(model) - keys(*path))


def _named(module: ModuleType, pattern: str) -> Iterator[str]:
    for name in dir(module):
        value = getattr(module, name)
        if re.fullmatch(pattern, name) and isinstance(value, str) and re.fullmatch(r"[a-z_0-9]+", value):
            yield value


def test_keys_of_blocks_that_deepspeed_names_by_constants() -> None:
    from deepspeed.comm import constants as comms
    from deepspeed.profiling import constants as profiling
    from deepspeed.runtime import constants as runtime
    from deepspeed.runtime.activation_checkpointing import config as activation
    from deepspeed.runtime.model_checkpointing import constants as checkpointing
    from deepspeed.runtime.swap_tensor import constants as swapping

    assert set(_named(swapping, r"AIO_(?!FORMAT)\w+")) <= keys("aio")
    assert set(_named(profiling, r"FLOPS_PROFILER_(?!.*DEFAULT)\w+")) <= keys("flops_profiler")
    assert set(_named(comms, r"COMMS_LOGGER_(?!.*DEFAULT)\w+")) <= keys("comms_logger")
    assert set(_named(activation, r"ACT_CHKPT_(?!.*DEFAULT)\w+")) <= keys("activation_checkpointing")
    assert set(_named(runtime, r"TORCH_AUTOCAST_(?!.*DEFAULT)\w+")) <= keys("torch_autocast")
    assert {runtime.GRAD_ACCUM_DTYPE, runtime.PARAM_DTYPE, runtime.BUFFER_DTYPE, runtime.KEEP_IN_FP32_MODULES} == keys("data_types")
    checkpoint = {runtime.CHECKPOINT_TAG_VALIDATION, runtime.LOAD_UNIVERSAL_CHECKPOINT, runtime.USE_NODE_LOCAL_STORAGE_CHECKPOINT}
    assert checkpoint | {runtime.CHECKPOINT_PARALLEL_WRITE, checkpointing.CHECKPOINT_SERIALIZATION, checkpointing.CHECKPOINT_WRITER} <= keys("checkpoint")


def test_parameters_of_schedules() -> None:
    from deepspeed.runtime import lr_schedules

    for name in lr_schedules.VALID_LR_SCHEDULES:
        parameters = set(inspect.signature(getattr(lr_schedules, name).__init__).parameters) - {"self", "optimizer"}
        assert parameters <= keys("scheduler", "params"), (name, parameters - keys("scheduler", "params"))


def test_parameters_of_optimizers_that_are_offered() -> None:
    import torch
    from deepspeed.runtime.engine import DeepSpeedEngine

    for optimizer in (torch.optim.AdamW, torch.optim.SGD):
        parameters = set(inspect.signature(optimizer.__init__).parameters) - {"self", "params"}
        assert parameters <= keys("optimizer", "params"), parameters - keys("optimizer", "params")
    assert {*DeepSpeedEngine._MUON_HALF_KEYS, *DeepSpeedEngine._ADAM_HALF_KEYS, "muon_lr", "adam_lr"} <= keys("optimizer", "params")


def test_every_key_of_the_spec_that_a_key_stands_for_exists() -> None:
    spec = load_schema(SPEC_SCHEMA)["properties"]
    for path, key in keys_of_spec().items():
        section, name = key.split(".")
        assert name in spec[section]["properties"], (path, key)
    assert set(stages_of_zero_keys()) <= set(ZeroSection.__dataclass_fields__) and len(stages_of_zero_keys()) == 12
    assert "zero" in Spec.__dataclass_fields__


def _rules(rule: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    for name, inner in rule.get("properties", {}).items():
        yield (*path, name), inner
        yield from _rules(inner, (*path, name))


def test_each_mark_is_a_known_one() -> None:
    for path, rule in _rules(SCHEMA):
        assert ("x-refused" in rule) == ("x-json" in rule), path
        assert rule.get("x-json", "spec") in ("spec", "ignored", "silent", "renamed", "refused"), path
        assert "x-key" not in rule or rule["x-json"] == "spec", path


@pytest.mark.parametrize("schema", [overrides_schema, json_schema])
def test_each_reading_is_a_schema_of_its_own(schema: Any) -> None:
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(schema())
    marks = {key for _, rule in _rules(schema()) for key in rule}
    assert ("x-refused" in marks) == (schema is overrides_schema)
