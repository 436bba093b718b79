"""The DeepSpeed configuration: golden texts, and what DeepSpeed itself makes of each."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.ds_config import load_preset
from launcher.ds_json.keys import stages_of_zero_keys
from launcher.resolve import Options, read_and_resolve

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "ds_config"
BASE = {"model": {"model_name_or_path": "builtin:tiny-llama"}, "data": {"train": {"path": "builtin:extraction/train"}}}
SPECS: dict[str, dict[str, Any]] = {
    "stage0_fp32": {"train": {"precision": "fp32"}, "zero": {"stage": 0}},
    "stage1_bf16": {"zero": {"stage": 1}},
    "stage2_sgd": {"train": {"precision": "fp32"}, "optimizer": {"type": "sgd", "learning_rate": 0.1, "momentum": 0.9, "max_grad_norm": 0}},
    "stage3_bf16": {"zero": {"stage": 3}, "optimizer": {"adam_beta2": 0.95, "weight_decay": 0.1}},
    "stage3_lora": {"zero": {"stage": 3}, "train": {"precision": "fp32"}, "method": {"type": "lora"}, "optimizer": {"learning_rate": 1e-3}},
    "stage1_offload": {"zero": {"stage": 1, "offload_optimizer": "cpu"}},
    "stage2_offload": {"zero": {"stage": 2, "offload_optimizer": "cpu"}},
    "stage3_offload": {"zero": {"stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"}},
    "stage3_offload_optimizer": {"zero": {"stage": 3, "offload_optimizer": "cpu"}},
    "stage3_nvme": {"zero": {"stage": 3, "offload_param": "nvme", "nvme_path": "/nvme"}},
    "stage3_nvme_optimizer": {"zero": {"stage": 3, "offload_optimizer": "cpu", "offload_param": "nvme", "nvme_path": "/nvme"}},
    "stage2_overrides": {"zero": {"overrides": {"steps_per_print": 10, "zero_optimization": {"reduce_scatter": False}, "comms_logger": {"enabled": True}}}},
    "stage1_buckets": {"zero": {"stage": 1, "reduce_bucket_size": 20_000_000, "allgather_bucket_size": 30_000_000, "overlap_comm": True}},
    "stage3_sizes": {
        "zero": {
            "stage": 3,
            "sub_group_size": 100_000_000,
            "stage3_prefetch_bucket_size": 0,
            "stage3_param_persistence_threshold": 10_000,
            "stage3_max_live_parameters": 200_000_000,
            "stage3_max_reuse_distance": 0,
            "zero_hpz_partition_size": 1,
            "overlap_comm": False,
        }
    },
    "stage1_autocast": {"zero": {"stage": 1}, "train": {"precision": "bf16_autocast"}},
    "stage3_qlora": {"zero": {"stage": 3}, "train": {"keep_in_fp32": ["inv_freq"]}, "method": {"type": "qlora"}},
    "stage2_adapters": {"method": {"type": "lora", "adapters": {"a": {}, "b": {"r": 4}}}},
    "stage2_8bit": {"optimizer": {"type": "adamw_8bit"}},
    "stage0_adafactor": {"zero": {"stage": 0}, "train": {"precision": "fp32"}, "optimizer": {"type": "adafactor"}},
    "stage1_muon": {"zero": {"stage": 1}, "optimizer": {"type": "muon", "muon_momentum": 0.9}},
}
FIELDS = {f"stage3_{name}": name for name in ("prefetch_bucket_size", "param_persistence_threshold", "max_live_parameters", "max_reuse_distance")}
"""Our name -> that of DeepSpeed's field, where they differ."""
PRESETS = ("zero0", "zero1", "zero2", "zero3", "zero1_offload", "zero2_offload", "zero3_offload", "zero3_nvme")


def render(tmp_path: Path, name: str, slots: int) -> str:
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps({**BASE, **SPECS[name], "cluster": {"slots": slots}}))
    return read_and_resolve(Options(spec_path=path)).ds_config


def _values(data: Any) -> Iterator[Any]:
    yield data
    for inner in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from _values(inner)


@pytest.mark.parametrize("name", SPECS)
def test_golden(tmp_path: Path, name: str) -> None:
    """FTLAUNCH_UPDATE_GOLDEN=1 writes the files anew."""
    text, golden = render(tmp_path, name, slots=4), GOLDEN / f"{name}.json"
    if os.environ.get("FTLAUNCH_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    difference = "\n".join(difflib.unified_diff(golden.read_text(encoding="utf-8").splitlines(), text.splitlines(), str(golden), "rendered", lineterm=""))
    assert not difference, difference


@pytest.mark.parametrize("name", SPECS)
def test_deepspeed_reads_what_the_spec_says(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank: without a process group DeepSpeed takes the world for one."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig

    config, spec = DeepSpeedConfig(json.loads(render(tmp_path, name, slots=1))), SPECS[name]
    zero, optimizer = spec.get("zero", {}), spec.get("optimizer", {})
    assert config.zero_optimization_stage == zero.get("stage", 2)
    assert config.bfloat16_config.enabled == (spec.get("train", {}).get("precision", "bf16") == "bf16") and not config.float16_config.enabled
    # What ftlaunch clips itself, and the optimizers that it makes itself, are none of DeepSpeed's affair.
    by_group = name in ("stage2_adapters", "stage1_muon")
    assert config.gradient_clipping == (0 if by_group else optimizer.get("max_grad_norm", 1.0))
    if optimizer.get("type", "adamw") in ("adamw", "sgd"):
        assert config.optimizer_params["lr"] == optimizer.get("learning_rate", 2e-5)
    else:
        assert config.optimizer_name is None and config.zero_allow_untested_optimizer
    for key in stages_of_zero_keys():
        assert key not in zero or getattr(config.zero_config, FIELDS.get(key, key)) == zero[key]
    assert (config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps) == (1, 1, 1)
    assert config.grad_accum_dtype == "fp32"
    for key in ("offload_optimizer", "offload_param"):
        offload = getattr(config.zero_config, key)
        assert (offload.device if offload else "none") == zero.get(key, "none")
        assert not offload or str(offload.nvme_path or "") == (zero.get("nvme_path", "") if offload.device == "nvme" else "")


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_complete(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig

    preset = load_preset(name)
    assert "auto" not in list(_values(preset))
    assert preset["zero_optimization"]["stage"] == int(name[4])
    assert DeepSpeedConfig({**preset, "train_batch_size": 1}).zero_config.stage == int(name[4])


def test_the_folder_holds_these_presets_only() -> None:
    assert {path.stem for path in (ROOT / "ds_configs").glob("*.json")} == set(PRESETS)


def test_clipping_and_accumulation_type_are_always_written(tmp_path: Path) -> None:
    for name in SPECS:
        config = json.loads(render(tmp_path, name, slots=2))
        assert "gradient_clipping" in config and config["data_types"]["grad_accum_dtype"] == "fp32"
        assert config["train_batch_size"] == 2
