"""Bases in 4 and 8 bits of every kind: near the base they stand for, equal in every stage that takes them, and resumed to the bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from ftcore import dist
from ftcore.data.prepared import ModelSource
from ftcore.model.quantise import quantisation
from ftcore.run import build_engine, restore
from ftcore.spec.errors import FtError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import MethodSection, Spec
from ftcore.train.loop import Trainer
from tests.ranks.jobs import make_job, make_run, train_runs
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section
from tests.ranks.test_resume import copy_at

Small = tuple[ModelSource, str]


def make(stage: int, precision: str = "fp32", *, save_steps: int = 0, **method: object) -> Spec:
    spec = with_section(make_spec(stage, method="qlora", precision=precision, updates=3, save_steps=save_steps), "method", **method)
    return with_section(spec, "zero", overrides={"zero_optimization": {"stage3_param_persistence_threshold": 0}}) if stage == 3 else spec


def test_8_bits_are_near_the_base_in_stages_0_to_2(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """G07: the first loss within 1 % of the base that was not quantised; stage 3 is refused."""
    whole = with_section(make_spec(2, method="lora", updates=3), "method", lora_dropout=0.0)
    runs = [(str(tmp_path / str(index)), spec) for index, spec in enumerate([whole, *(make(stage, bits=8) for stage in (0, 1, 2))])]
    plain, *eight = pool.run(train_runs, 2, runs, *small, logs=tmp_path / "logs")[0]
    for result in eight:
        assert result.losses[0] == pytest.approx(plain.losses[0], rel=1e-2) and result.losses[0] != plain.losses[0]
        assert result.losses == pytest.approx(eight[0].losses, rel=1e-5)
        assert all(".lora_" in name for name in result.final)


def test_resume_on_an_8_bit_base_is_bit_equal(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """The checkpoint holds no part of the base, which bitsandbytes could not load back."""
    spec = make(2, "bf16", bits=8, save_steps=1)
    [whole] = pool.run(train_runs, 2, [(str(tmp_path / "whole"), spec)], *small, logs=tmp_path / "logs")[0]
    copy_at(tmp_path / "whole", tmp_path / "resumed", 2)
    [resumed] = pool.run(train_runs, 2, [(str(tmp_path / "resumed"), spec)], *small, logs=tmp_path / "logs")[0]
    assert resumed.losses == whole.losses
    assert not [name for name, value in whole.final.items() if not torch.equal(resumed.final[name], value)]


def test_every_4_bit_type_is_the_same_in_stages_2_and_3(pool: RankPool, small: Small, tmp_path: Path) -> None:
    kinds = [(quant_type, double_quant) for quant_type in ("nf4", "fp4") for double_quant in (False, True)]
    specs = [make(stage, quant_type=quant_type, double_quant=double_quant) for quant_type, double_quant in kinds for stage in (2, 3)]
    runs = [(str(tmp_path / str(index)), spec) for index, spec in enumerate(specs)]
    results = pool.run(train_runs, 2, runs, *small, logs=tmp_path / "logs")[0]
    for second, third in zip(results[::2], results[1::2], strict=True):
        assert third.losses == pytest.approx(second.losses, rel=1e-5)
    assert len({result.losses[0] for result in results[::2]}) == len(kinds), "each kind rounds the base in its own way"


def packed_sizes(rank: int, world_size: int, folder: str, spec: Spec, source: ModelSource, samples: str) -> dict[str, tuple[int, int, int]]:
    """Packed weight -> its bytes in all, those that this rank keeps as its part, and those that lie whole; after training."""
    ranks = dist.start()
    if rank == 0:
        make_run(Path(folder), spec, world_size)
    dist.barrier()
    job = make_job(RunDir(Path(folder)), spec, source, samples)
    engine = build_engine(job, ranks)
    Trainer(engine, job, restore(engine, job)).run()
    packed = {name: weight for name, weight in engine.module.named_parameters() if weight.dtype in (torch.uint8, torch.int8)}
    sizes = {name: (weight.ds_numel, weight.ds_tensor.numel(), weight.numel()) for name, weight in packed.items()}
    dist.barrier()
    dist.stop()
    return sizes


def test_stage_3_partitions_the_packed_weights(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """G08: each rank keeps half of every packed weight of the base, and nothing whole."""
    found = pool.run(packed_sizes, 2, str(tmp_path / "run"), make(3), *small, logs=tmp_path / "logs")
    for sizes in found:
        assert len(sizes) == 2 * 7  # layers x linear layers in each
        assert all(mine == -(-whole // 2) < whole and not left_whole for whole, mine, left_whole in sizes.values())


def test_without_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(FtError, match="method qlora needs bitsandbytes"):
        quantisation(MethodSection(type="qlora"), torch.float32)
