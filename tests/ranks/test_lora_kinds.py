"""DoRA, rsLoRA, and modules trained whole beside adapters: the same in every stage, in every precision, and resumed to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ftcore.data.prepared import ModelSource
from ftcore.spec.sections import Spec
from tests.ranks.engine_facts import allow_fp16
from tests.ranks.jobs import TrainedRank, train_runs
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section
from tests.ranks.test_resume import copy_at

Small = tuple[ModelSource, str]


def make(stage: int, precision: str = "fp32", *, updates: int = 3, save_steps: int = 0, **method: object) -> Spec:
    spec = make_spec(stage, method="lora", precision="fp32" if precision == "fp16" else precision, updates=updates, save_steps=save_steps, coalesce=stage > 1)
    spec = with_section(spec, "method", lora_dropout=0.0, **method)
    if precision == "fp16":
        spec = with_section(with_section(spec, "train", precision="fp16"), "model", dtype="float16")
    return with_section(spec, "zero", overrides={"zero_optimization": {"stage3_param_persistence_threshold": 0}}) if stage == 3 else spec


def train_also_in_fp16(rank: int, world_size: int, runs: list[tuple[str, Spec]], source: ModelSource, samples: str) -> list[TrainedRank]:
    allow_fp16()
    return train_runs(rank, world_size, runs, source, samples)


@pytest.mark.parametrize("kind", ["use_dora", "use_rslora"])
def test_other_kinds_of_lora_are_the_same_in_stages_2_and_3(kind: str, pool: RankPool, small: Small, tmp_path: Path) -> None:
    specs = [make(2), *(make(stage, **{kind: True}) for stage in (2, 3))]
    runs = [(str(tmp_path / str(index)), spec) for index, spec in enumerate(specs)]
    plain, second, third = pool.run(train_runs, 2, runs, *small, logs=tmp_path / "logs")[0]
    assert third.losses == pytest.approx(second.losses, rel=1e-5)
    assert second.losses[0] == pytest.approx(plain.losses[0], rel=1e-5) and second.losses[1:] != plain.losses[1:]
    assert any("lora_magnitude_vector" in name for name in third.final) is (kind == "use_dora")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_modules_trained_whole_beside_adapters(precision: str, pool: RankPool, small: Small, tmp_path: Path) -> None:
    """G06: in the compute type with fp32 masters, which the loss scale accepts; a resume after the first update goes on to the bit."""
    asked = [(stage, name) for stage in (1, 2, 3) for name in ("embed_tokens", "lm_head")]
    specs = [make(stage, precision, updates=2, save_steps=1, modules_to_save=(name,)) for stage, name in asked]
    whole = pool.run(train_also_in_fp16, 2, [(str(tmp_path / f"whole{at}"), spec) for at, spec in enumerate(specs)], *small, logs=tmp_path / "logs")[0]
    for at in range(len(specs)):
        copy_at(tmp_path / f"whole{at}", tmp_path / f"resumed{at}", 1)
    resumed = pool.run(train_also_in_fp16, 2, [(str(tmp_path / f"resumed{at}"), spec) for at, spec in enumerate(specs)], *small, logs=tmp_path / "logs")[0]
    for (stage, name), one, other in zip(asked, whole, resumed, strict=True):
        saved = [key for key in one.change if "modules_to_save" in key]
        assert len(saved) == 1 and name in saved[0] and one.change[saved[0]].abs().max() > 0, (stage, name)
        assert other.losses == one.losses and one.final[f"master/{saved[0]}"].dtype == torch.float32
        assert not [key for key, value in one.final.items() if not torch.equal(other.final[key], value)], (stage, name)
