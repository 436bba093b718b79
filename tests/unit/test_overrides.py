"""zero.overrides: refused, unknown, without effect, or let through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.errors import Problem
from launcher.ds_json.keys import stages_of_zero_keys
from launcher.resolve import Options, check_spec


def problems_of(tmp_path: Path, overrides: dict[str, Any], stage: int = 2, slots: int = 2, **zero: str) -> list[Problem]:
    spec = {
        "model": {"model_name_or_path": "builtin:tiny-llama"},
        "data": {"train": {"path": "builtin:extraction/train"}},
        "train": {"precision": "fp32"},
        "zero": {"stage": stage, "overrides": overrides, **zero},
        "cluster": {"slots": slots},
    }
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec))
    return check_spec(Options(spec_path=path))


@pytest.mark.parametrize(
    ("overrides", "stage", "where", "words"),
    [
        ({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}, 2, "train_batch_size", "is not a multiple of 8 (4 x 2 ranks)"),
        ({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}, 2, "train_batch_size", "the nearest that are: 8 or 16"),
        ({"train_batch_size": 4, "train_micro_batch_size_per_gpu": 4}, 2, "train_batch_size", "the nearest that are: 8"),
        ({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}, 2, "train_micro_batch_size_per_gpu", "batch.* decides"),
        ({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3}, 2, "gradient_accumulation_steps", "batch.* decides"),
        ({"train_batch_size": "10"}, 2, "train_batch_size", "batch.* decides"),
        ({"gradient_clipping": 0.5}, 2, "gradient_clipping", "use optimizer.max_grad_norm"),
        ({"optimizer": {"type": "Lion"}}, 2, "optimizer", "the section optimizer"),
        ({"scheduler": {}}, 2, "scheduler", "the section schedule"),
        ({"fp16": {"enabled": True}}, 2, "fp16.enabled", "use train.precision"),
        ({"fp16": {"hysteresis": 4}}, 2, "fp16", "fp16 is tuned here, but train.precision is fp32"),
        ({"fp16": {"loss_scale": 128}}, 2, "fp16.loss_scale", "a fixed loss scale"),
        ({"bf16": {"enabled": "auto"}}, 2, "bf16.enabled", '"auto"'),
        ({"bf16": {"enabled": True}}, 2, "bf16", "use train.precision"),
        ({"bfloat16": True}, 2, "bfloat16", "use train.precision"),
        ({"zero_optimization": {"stage": 1}}, 2, "zero_optimization.stage", "use zero.stage"),
        ({"zero_optimization": {"reduce_bucket_size": "auto"}}, 2, "zero_optimization.reduce_bucket_size", '"auto"'),
        ({"data_types": {"keep_in_fp32_modules": ["auto"]}}, 2, "data_types.keep_in_fp32_modules[0]", '"auto"'),
        ({"zero_optimisation": {"stage": 2}}, 2, "zero_optimisation", "did you mean `zero_optimization`?"),
        ({"zero_optimization": {"reduce_scater": True}}, 2, "zero_optimization.reduce_scater", "did you mean `reduce_scatter`?"),
        ({"zero_optimization": True}, 2, "zero_optimization", "a section (keys below it) expected, got boolean true"),
        ({"zero_optimization": {"reduce_scatter": 1}}, 2, "zero_optimization.reduce_scatter", "boolean"),
        ({"aio": {"block_size": 5e8}}, 2, "aio.block_size", "write 500000000"),
        ({"aio": {"block_size": 0}}, 2, "aio.block_size", "at least 1"),
        ({"zero_optimization": {"reduce_scatter": True}}, 0, "zero_optimization.reduce_scatter", "no effect at ZeRO stage 0"),
        ({"zero_optimization": {"memory_efficient_linear": True}}, 2, "zero_optimization.memory_efficient_linear", "it is for stage 3"),
        ({"zero_optimization": {"offload_param": {"pin_memory": False}}}, 2, "zero_optimization.offload_param", "it is for stage 3"),
        ({"zero_optimization": {"offload_param": {"pin_memory": False}}}, 3, "zero_optimization.offload_param", "zero.offload_param is none"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, 3, "zero_optimization.offload_optimizer.device", "use zero.offload_optimizer"),
        ({"zero_optimization": {"offload_optimizer": {"super_offload": True}}}, 3, "zero_optimization.offload_optimizer.super_offload", "compiled Adam"),
        ({"zero_optimization": {"offload_optimizer": {"pipeline_read": True}}}, 3, "zero_optimization.offload_optimizer.pipeline_read", "state on NVMe"),
        ({"zero_optimization": {"offload_optimizer": {}}}, 3, "zero_optimization.offload_optimizer", "set zero.offload_optimizer: cpu, or remove it"),
        ({"zero_optimization": {"leaf_module": {"classes": ["a.B"]}}}, 3, "zero_optimization.leaf_module.classes[0]", "there is no class a.B"),
        (
            {"zero_optimization": {"leaf_module": {"classes": ["MyBlock", "transformers.models.llama.modeling_llama.LlamaMoe"]}}},
            3,
            "zero_optimization.leaf_module.classes[1]",
            "LlamaMoe",
        ),
        ({"zero_optimization": {"leaf_module": {"classes": ["__main__.B"]}}}, 3, "zero_optimization.leaf_module.classes[0]", "there is no class"),
        ({"zero_optimization": {"leaf_module": {"classes": ["transformers..LlamaMLP"]}}}, 3, "zero_optimization.leaf_module.classes[0]", "there is no class"),
        ({"zero_optimization": {"reduce_scatter": False}}, 3, "zero_optimization.reduce_scatter", "scales gradients"),
        ({"zero_optimization": {"round_robin_gradients": True}}, 2, "zero_optimization.round_robin_gradients", "checkpoints"),
        ({"zero_optimization": {"compute_grad_norm": False}}, 2, "zero_optimization.compute_grad_norm", "non-finite"),
        ({"zero_optimization": {"mics_shard_size": 2}}, 3, "zero_optimization.mics_shard_size", "removed"),
        ({"zero_optimization": {"zenflow": {}}}, 2, "zero_optimization.zenflow", "compiled Adam"),
        ({"prescale_gradients": True}, 2, "prescale_gradients", "scale of the gradients"),
        ({"steps_per_print": 0}, 2, "steps_per_print", "at least 1"),
        ({"wall_clock_breakdown": "false"}, 2, "wall_clock_breakdown", "boolean"),
        ({"activation_checkpointing": {}}, 2, "activation_checkpointing", "train.gradient_checkpointing"),
        ({"elasticity": {}}, 2, "elasticity", "removed"),
        ({"aio": {"blok_size": 1}}, 2, "aio.blok_size", "did you mean `block_size`?"),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, 2, "data_types.grad_accum_dtype", "always accumulated in fp32"),
        ({"compile": {"deepcompile": True}}, 2, "compile", "no effect"),
    ],
)
def test_refused(tmp_path: Path, overrides: dict[str, Any], stage: int, where: str, words: str) -> None:
    found = problems_of(tmp_path, overrides, stage)
    hits = [problem for problem in found if problem.where == f"zero.overrides.{where}" and words in f"{problem.what} {problem.fix}"]
    assert len(hits) == 1 and hits[0].line == 1, found


@pytest.mark.parametrize(
    ("overrides", "stage", "zero"),
    [
        ({"zero_optimization": {"contiguous_gradients": True, "use_multi_rank_bucket_allreduce": False}}, 1, {}),
        ({"zero_optimization": {"reduce_scatter": False}}, 2, {}),
        ({"zero_optimization": {"stage3_module_granularity_threshold": 9}}, 3, {}),
        ({"zero_optimization": {"offload_param": {"pin_memory": False}}}, 3, {"offload_param": "cpu"}),
        ({"zero_optimization": {"leaf_module": {"classes": ["transformers.models.llama.modeling_llama.LlamaMLP", "MyBlock"]}}}, 3, {}),
        ({"flops_profiler": {"enabled": True, "output_file": None}, "log_level": "warning", "communication_data_type": "fp32"}, 2, {}),
    ],
)
def test_let_through(tmp_path: Path, overrides: dict[str, Any], stage: int, zero: dict[str, str]) -> None:
    assert problems_of(tmp_path, overrides, stage, **zero) == []


def test_another_mistake_in_zero_hides_only_what_rests_on_it(tmp_path: Path) -> None:
    overrides = {"steps_per_print": 0, "zero_optimization": {"round_robin_gradients": "no", "memory_efficient_linear": True}}
    found = {problem.where.removeprefix("zero.") for problem in problems_of(tmp_path, overrides, stage=9)}
    assert found == {"stage", "overrides.steps_per_print", "overrides.zero_optimization.round_robin_gradients"}


@pytest.mark.parametrize("name", stages_of_zero_keys())
def test_a_key_of_the_spec_is_named(tmp_path: Path, name: str) -> None:
    """What the section zero has a key for stands there alone."""
    (found,) = problems_of(tmp_path, {"zero_optimization": {name: 1}}, 3)
    assert found.where == f"zero.overrides.zero_optimization.{name}" and found.what == "the spec has a key for it" and found.fix == f"use zero.{name}"


def test_a_profile_is_not_written_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    (found,) = problems_of(tmp_path, {"flops_profiler": {"enabled": True, "output_file": str(tmp_path / "thesis.txt")}})
    assert found.where == "zero.overrides.flops_profiler.output_file" and "would write over it" in found.what
    assert problems_of(tmp_path, {"flops_profiler": {"output_file": str(tmp_path / "new.txt")}}) == []
