"""zero.config: a DeepSpeed JSON taken into a spec. The files in tests/cases/ds_json have the shapes that people use; each says which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftcore.spec.document import leaves
from ftcore.spec.errors import Problem, SpecError
from launcher.resolve import Options, Resolution, read_and_resolve

CASES = Path(__file__).resolve().parents[1] / "cases" / "ds_json"
BASE: dict[str, Any] = {"model": {"model_name_or_path": "builtin:tiny-llama"}, "data": {"train": {"path": "builtin:extraction/train"}}}


def resolve(tmp_path: Path, config: Path | str, *sets: str, slots: int = 2, zero_stage: int | None = None, **sections: dict[str, Any]) -> Resolution:
    """Resolves a spec whose zero.config is a file, or a text for one called ds.json."""
    if isinstance(config, str):
        (tmp_path / "ds.json").write_text(config)
        config = tmp_path / "ds.json"
    zero = {"config": str(config), **sections.pop("zero", {})}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump({**BASE, **sections, "zero": zero, "cluster": {"slots": slots}}))
    return read_and_resolve(Options(spec_path=tmp_path / "spec.yaml", sets=sets, zero_stage=zero_stage))


def problems(tmp_path: Path, config: Path | str, *sets: str, **more: Any) -> list[Problem]:
    with pytest.raises(SpecError) as raised:
        resolve(tmp_path, config, *sets, **more)
    return list(raised.value.problems)


TAKEN: dict[str, dict[str, Any]] = {
    "trainer_stage2_auto": {
        "zero.stage": 2,
        "zero.offload_optimizer": "cpu",
        "zero.allgather_bucket_size": 300_000_000,
        "zero.overlap_comm": True,
        "zero.overrides.zero_optimization.offload_optimizer.pin_memory": False,
        "zero.overrides.steps_per_print": 10_000,
        "schedule.lr_scheduler_type": "constant_with_warmup",
        "optimizer.type": "adamw",
    },
    "trainer_stage3_auto": {
        "zero.stage": 3,
        "zero.offload_param": "cpu",
        "zero.stage3_max_reuse_distance": 2_000_000_000,
        "zero.sub_group_size": 400_000_000,
        "schedule.lr_scheduler_type": "linear",
    },
    "unread_blocks": {"zero.stage": 2, "zero.reduce_bucket_size": 400_000_000, "zero.overlap_comm": False},
    "stage0": {"zero.stage": 0, "train.precision": "fp32", "optimizer.max_grad_norm": 0.25},
    "stage1_short": {"zero.stage": 1, "zero.overlap_comm": True, "zero.overrides.wall_clock_breakdown": False},
    "names_without_stage3": {"zero.stage3_param_persistence_threshold": 50_000, "zero.stage3_max_live_parameters": 0, "zero.stage3_max_reuse_distance": 0},
    "numbers_of_a_cluster": {
        "batch.global_batch_size": 64,
        "optimizer.max_grad_norm": 0.5,
        "optimizer.learning_rate": 3e-5,
        "optimizer.adam_beta1": 0.9,
        "optimizer.adam_beta2": 0.95,
        "optimizer.adam_epsilon": 1e-6,
        "optimizer.weight_decay": 0.1,
        "schedule.lr_scheduler_type": "cosine",
        "schedule.warmup_steps": 30,
        "schedule.min_lr_ratio": 0.1,
    },
    "offload_old_names": {"zero.stage": 2, "zero.offload_optimizer": "cpu", "train.precision": "bf16"},
    "nvme": {"zero.offload_param": "nvme", "zero.nvme_path": "/fast/nvme", "batch.global_batch_size": 8, "zero.overrides.aio.queue_depth": 16},
    "recomputed": {"zero.stage": 3, "zero.overrides.zero_optimization.stage3_module_granularity_threshold": 16},
    "micro_batches": {"batch.global_batch_size": 12, "train.precision": "bf16_autocast", "optimizer.learning_rate": 2e-4, "schedule.warmup_steps": 10},
}
"""File -> what of it stands in the resolved spec."""
WARNED: dict[str, tuple[str, ...]] = {
    "trainer_stage2_auto": (),
    "trainer_stage3_auto": (),
    "unread_blocks": (
        "7: zero_optimization.round_robin_gradients: ignored: it reorders the shards",
        "8: comms_config, monitor_config: ignored: DeepSpeed reads no such key",
    ),
    "stage0": (
        "6: zero_optimization.allgather_bucket_size, overlap_comm: ignored: no effect at ZeRO stage 0",
        "6: zero_optimization.round_robin_gradients: ignored: it reorders",
    ),
    "stage1_short": ("4: compile: ignored: the engine is not compiled",),
    "names_without_stage3": ("6: zero_optimization.sub_group_size: ignored: 0 makes each parameter a step of its own",),
    "numbers_of_a_cluster": (
        "4: train_micro_batch_size_per_gpu, gradient_accumulation_steps: ignored: train_batch_size decides",
        "15: scheduler.params.total_num_steps: ignored: the learning rate ends with the run",
    ),
    "offload_old_names": ("10: zero_optimization.cpu_offload_use_pin_memory: ignored: DeepSpeed has renamed it; use offload_optimizer.pin_memory",),
    "nvme": (),
    "recomputed": (
        "3: activation_checkpointing: ignored: it has no effect on Hugging Face models; use train.gradient_checkpointing",
        "7: zero_optimization.allgather_partitions, allgather_bucket_size: ignored: no effect at ZeRO stage 3",
        "9: zero_optimization.reduce_scatter: ignored: false scales gradients another way at stage 3",
    ),
    "micro_batches": (
        "3: train_micro_batch_size_per_gpu: read as batch.global_batch_size 12: 2 samples x 3 steps x 2 ranks",
        "7: scheduler.params.warmup_num_steps: the warm-up is linear here",
    ),
}
"""File -> what a user is told: line, key and the beginning of the reason."""


@pytest.mark.parametrize("name", TAKEN)
def test_a_short_spec_takes_over_what_the_json_says(tmp_path: Path, name: str) -> None:
    resolution = resolve(tmp_path, CASES / f"{name}.json")
    values: Any = json.loads(resolution.resolved.to_json())
    spec, sources = {".".join(path): value for path, value in leaves(values["spec"])}, values["sources"]
    lines = (CASES / f"{name}.json").read_text().splitlines()
    for key, value in TAKEN[name].items():
        assert spec[key] == value and type(spec[key]) is type(value), (key, spec[key])
        file, _, line = sources[key].rpartition(":")
        assert file == str(CASES / f"{name}.json") and 1 < int(line) <= len(lines), sources[key]
    assert spec["zero.config"] == str(CASES / f"{name}.json")
    told = [warning.removeprefix(f"{CASES / name}.json:") for warning in resolution.warnings if not warning.startswith("untested combination")]
    assert len(told) == len(WARNED[name]) and all(map(str.startswith, told, WARNED[name])), told


@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize("name", TAKEN)
def test_b09_nothing_is_left_open_and_deepspeed_reads_it(tmp_path: Path, name: str, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """B09: no "auto" in what DeepSpeed gets, on any number of ranks."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig

    resolution = resolve(tmp_path, CASES / f"{name}.json", slots=slots)
    config = json.loads(resolution.ds_config)
    resolved = resolution.resolved.to_json().replace('"format": "auto"', "")  # of the data: their rows decide
    assert '"auto"' not in resolution.ds_config and '"auto"' not in resolved
    assert config["train_batch_size"] == slots and config["gradient_accumulation_steps"] == 1
    # Without a process group DeepSpeed takes the world for one.
    read = DeepSpeedConfig({**config, "train_batch_size": 1})
    assert read.zero_optimization_stage == resolution.resolved.spec.zero.stage and read.grad_accum_dtype == "fp32"
    assert read.optimizer_params["lr"] == resolution.resolved.spec.optimizer.learning_rate


def test_values_reach_deepspeed(tmp_path: Path) -> None:
    config = json.loads(resolve(tmp_path, CASES / "numbers_of_a_cluster.json").ds_config)
    assert config["gradient_clipping"] == 0.5 and config["zero_optimization"]["stage3_param_persistence_threshold"] == 100_000
    assert config["zero_optimization"]["leaf_module"]["classes"] == ["transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock"]
    assert config["optimizer"]["params"]["betas"] == [0.9, 0.95]


def test_the_spec_and_the_json_may_say_the_same(tmp_path: Path) -> None:
    same = {"zero": {"stage": 3}, "optimizer": {"learning_rate": 3e-5, "max_grad_norm": 0.5}, "batch": {"global_batch_size": 64}}
    resolution = resolve(tmp_path, CASES / "numbers_of_a_cluster.json", **same)
    assert resolution.resolved.sources["zero.stage"] .startswith(str(tmp_path / "spec.yaml"))


def test_all_contradictions_come_at_once(tmp_path: Path) -> None:
    sections = {
        "zero": {"stage": 1, "offload_optimizer": "cpu", "nvme_path": "/other"},
        "optimizer": {"max_grad_norm": 1.0, "adam_beta2": 0.999},
        "batch": {"tokens_per_update": 4096},
        "schedule": {"warmup_ratio": 0.1},
        "train": {"max_steps": 30},
    }
    text = """{"zero_optimization": {"stage": 3,
      "offload_optimizer": {"device": "none"}, "offload_param": {"device": "nvme", "nvme_path": "/fast"}},
      "gradient_clipping": 0.5,
      "optimizer": {"params": {"betas": [0.9, 0.95]}},
      "train_batch_size": 8,
      "bf16": {"enabled": true},
      "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 5, "total_num_steps": 40}}}"""
    found = {problem.where: problem for problem in problems(tmp_path, text, "train.precision=fp32", **sections) if problem.file.endswith("ds.json")}
    expected = {
        "zero_optimization.stage": (1, "3 contradicts zero.stage: 1 "),
        "zero_optimization.offload_optimizer.device": (2, "none contradicts zero.offload_optimizer: cpu"),
        "zero_optimization.offload_param.nvme_path": (2, "/fast contradicts zero.nvme_path: /other"),
        "gradient_clipping": (3, "0.5 contradicts optimizer.max_grad_norm: 1.0"),
        "optimizer.params.betas": (4, "0.95 contradicts optimizer.adam_beta2: 0.999"),
        "train_batch_size": (5, "8 contradicts batch.tokens_per_update: 4096"),
        "scheduler.params.warmup_num_steps": (7, "5 contradicts schedule.warmup_ratio: 0.1"),
        "scheduler.params.total_num_steps": (7, "40 contradicts train.max_steps: 30"),
    }
    assert {where: (problem.line, problem.what[: len(expected[where][1])]) for where, problem in found.items() if where in expected} == expected
    clipping = found["gradient_clipping"]
    assert f"({tmp_path / 'spec.yaml'}:" in clipping.what and "remove it here, or optimizer.max_grad_norm there" in clipping.fix


def test_the_command_line_wins_over_the_json(tmp_path: Path) -> None:
    resolution = resolve(tmp_path, CASES / "numbers_of_a_cluster.json", "optimizer.learning_rate=1e-3", zero_stage=2)
    spec = resolution.resolved.spec
    assert (spec.zero.stage, spec.optimizer.learning_rate, spec.optimizer.weight_decay) == (2, 1e-3, 0.1)
    assert any("--set wins: optimizer.learning_rate is 0.001, not 3e-05" in warning for warning in resolution.warnings)
    assert any("--zero wins: zero.stage is 2, not 3" in warning for warning in resolution.warnings)
    # What is for stage 3 alone is left out.
    assert "stage3" not in resolution.ds_config and spec.zero.stage3_param_persistence_threshold is None


def test_overrides_win_over_the_json(tmp_path: Path) -> None:
    overrides = {"steps_per_print": 7, "zero_optimization": {"offload_optimizer": {"pin_memory": True}}}
    config = json.loads(resolve(tmp_path, CASES / "trainer_stage2_auto.json", zero={"overrides": overrides}).ds_config)
    assert config["steps_per_print"] == 7 and config["zero_optimization"]["offload_optimizer"]["pin_memory"] is True


def test_a_device_taken_back_takes_its_tuning_along(tmp_path: Path) -> None:
    resolution = resolve(tmp_path, CASES / "trainer_stage2_auto.json", "zero.offload_optimizer=none")
    assert "pin_memory" not in resolution.ds_config and resolution.resolved.spec.zero.offload_optimizer == "none"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ('{"train_micro_batch_size_per_gpu": 4}', 8),
        ('{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3}', 24),
        ('{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": "auto"}', 16),
        ('{"gradient_accumulation_steps": 4}', 16),
        ('{"train_micro_batch_size_per_gpu": 4, "train_batch_size": 20}', 20),
        ("{}", 16),
    ],
)
def test_sizes(tmp_path: Path, text: str, size: int) -> None:
    """On two ranks: accumulation that is left out is 1, as in DeepSpeed; what is "auto" leaves the size to the spec, whose default is 16."""
    assert resolve(tmp_path, text).resolved.spec.batch.global_batch_size == size


def test_a_size_in_the_spec_outweighs_micro_batches(tmp_path: Path) -> None:
    resolution = resolve(tmp_path, CASES / "micro_batches.json", batch={"global_batch_size": 7})
    assert resolution.resolved.spec.batch.global_batch_size == 7
    assert any("train_micro_batch_size_per_gpu, gradient_accumulation_steps: ignored" in warning for warning in resolution.warnings)


def test_what_other_tools_write(tmp_path: Path) -> None:
    """Accelerate writes null for offload that is off and Infinity for steps_per_print; aio's threads had another name."""
    zero = '{"stage": 3, "overlap_comm": null, "offload_param": null, "offload_optimizer": {"device": "none", "nvme_path": null}}'
    text = f'{{"zero_optimization": {zero}, "communication_data_type": null, "steps_per_print": Infinity, "aio": {{"thread_count": 2}}}}'
    resolution = resolve(tmp_path, text)
    config = json.loads(resolution.ds_config)
    assert resolution.warnings == () and config["aio"] == {"intra_op_parallelism": 2} and config["steps_per_print"] == 1_000_000_000
    assert resolution.resolved.spec.zero.offload_optimizer == "none" and "offload_param" not in config["zero_optimization"]


def test_momentum_belongs_to_the_optimizer(tmp_path: Path) -> None:
    for kind, key in (("SGD", "momentum"), ("Muon", "muon_momentum")):
        text = f'{{"optimizer": {{"type": "{kind}", "params": {{"lr": 0.1, "momentum": 0.8}}}}, "zero_optimization": {{"stage": 1}}}}'
        optimizer = resolve(tmp_path, text, train={"precision": "fp32"}).resolved.spec.optimizer
        assert optimizer.type == kind.lower() and getattr(optimizer, key) == 0.8
