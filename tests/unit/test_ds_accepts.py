"""DeepSpeed's own configuration class takes every ds_config.json that a right spec gives."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftcore.spec.errors import SpecError
from launcher.resolve import Options, read_and_resolve

CHOICES: dict[str, list[Any]] = {
    "method.type": ["full", "lora", "qlora"],
    "method.bits": [4, 8],
    "method.storage_dtype": ["uint8", "bfloat16", "float32"],
    "train.precision": ["fp32", "bf16", "bf16_autocast"],
    "train.gradient_checkpointing": [True, "sqrt", "every:2"],
    "train.keep_in_fp32": ["inv_freq"],
    "zero.stage": [0, 1, 2, 3],
    "zero.offload_optimizer": ["none", "cpu"],
    "zero.offload_param": ["none", "cpu", "nvme"],
    "zero.nvme_path": ["nvme"],
    "zero.coalesce_grad_reduction": [True, False],
    "zero.overlap_comm": [True, False],
    "zero.reduce_bucket_size": [1, 10**6, 10**9],
    "zero.allgather_bucket_size": [1, 10**6],
    "zero.sub_group_size": [1, 10**12],
    "zero.stage3_prefetch_bucket_size": [0, 10**6],
    "zero.stage3_param_persistence_threshold": [0, 10**5],
    "zero.stage3_max_live_parameters": [0, 10**9],
    "zero.stage3_max_reuse_distance": [0, 10**9],
    "zero.zero_hpz_partition_size": [1, 2],
    "zero.overrides": [
        {"steps_per_print": 10},
        {"comms_logger": {"enabled": True}},
        {"zero_optimization": {"round_robin_gradients": True}},
        {"wall_clock_breakdown": True, "memory_breakdown": True},
    ],
    "optimizer.type": ["adamw", "adamw_8bit", "adafactor", "muon", "sgd"],
    "optimizer.max_grad_norm": [0, 0.5],
    "optimizer.learning_rate": [1e-3, 1],
    "optimizer.weight_decay": [0.1],
    "optimizer.momentum": [0.9],
    "optimizer.adam_beta2": [0.5],
    "optimizer.parameter_groups": [[{"pattern": "*norm*", "max_grad_norm": 1.0}], [{"pattern": "*head*", "learning_rate": 0.1}]],
    "schedule.lr_scheduler_type": ["linear", "cosine", "warmup_stable_decay", "constant"],
}
BASE = {"model": {"model_name_or_path": "gpt2"}, "data": {"train": {"path": "builtin:extraction/train"}}, "cluster": {"slots": 2}}


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(json.dumps(BASE))
    for key in draw(st.lists(st.sampled_from(sorted(CHOICES)), max_size=7, unique=True)):
        section, _, name = key.partition(".")
        spec.setdefault(section, {})[name] = draw(st.sampled_from(CHOICES[key]))
    return spec


TAKEN: list[str] = []
"""Configurations that a spec gave, so that a generator that makes wrong specs alone is noticed."""


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs())
def test_every_configuration_is_taken(spec: dict[str, Any]) -> None:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spec.yaml")
        path.write_text(yaml.safe_dump(spec))
        try:
            text = read_and_resolve(Options(spec_path=path)).ds_config
        except SpecError:
            return
    config = json.loads(text)
    TAKEN.append(text)
    assert '"auto"' not in text and config["train_batch_size"] == 2
    read = DeepSpeedConfig({**config, "train_batch_size": 1})
    assert read.zero_optimization_stage == spec.get("zero", {}).get("stage", 2)
    assert read.gradient_clipping == config["gradient_clipping"] and read.grad_accum_dtype == "fp32"


def test_many_different_ones_were_taken() -> None:
    if not TAKEN:
        pytest.skip("the test above did not run in this process")
    assert len(set(TAKEN)) >= 10
