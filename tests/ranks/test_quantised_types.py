"""Types that a 4-bit base is stored and computed in: what is allowed learns the same, and what is refused is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ftcore.data.prepared import ModelSource
from tests.ranks.jobs import train_runs
from tests.ranks.pool import RankPool
from tests.ranks.test_quantised import make
from tests.ranks.test_resume import copy_at

Small = tuple[ModelSource, str]


def test_storage_in_the_engines_type_changes_nothing(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """G08: bits of the same packed weights, partitioned or not; a run goes on from its checkpoint to the bit."""
    kinds = [(stage, storage) for stage in (2, 3) for storage in ("uint8", "bfloat16")]
    runs = [(str(tmp_path / f"{stage}_{storage}"), make(stage, "bf16", save_steps=1, storage_dtype=storage)) for stage, storage in kinds]
    trained = pool.run(train_runs, 2, runs, *small, logs=tmp_path / "logs")[0]
    for plain, other in (trained[:2], trained[2:]):
        assert other.losses == plain.losses
        assert all(torch.equal(other.final[name], value) for name, value in plain.final.items())
    assert trained[2].losses == pytest.approx(trained[0].losses, rel=5e-3)
    folder, spec = runs[3]
    copy_at(Path(folder), tmp_path / "resumed", 2)
    [resumed] = pool.run(train_runs, 2, [(str(tmp_path / "resumed"), spec)], *small, logs=tmp_path / "logs")[0]
    assert resumed.losses == trained[3].losses
    assert all(torch.equal(resumed.final[name], value) for name, value in trained[3].final.items())


def test_types_of_computing(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """The same weights to the rounding of bf16: in fp32 beside a bf16 model, and in bf16 inside an fp32 one."""
    specs = [make(2), make(2, compute_dtype="bfloat16"), make(3, compute_dtype="bfloat16", storage_dtype="float32")]
    specs += [make(2, "bf16"), make(2, "bf16", compute_dtype="float32")]
    runs = [(str(tmp_path / str(index)), spec) for index, spec in enumerate(specs)]
    losses = [trained.losses for trained in pool.run(train_runs, 2, runs, *small, logs=tmp_path / "logs")[0]]
    exact = losses[0]
    for index, each in enumerate(losses[1:], start=1):
        assert each == pytest.approx(exact, rel=5e-3) and each != exact, index
    assert losses[1] == pytest.approx(losses[2], rel=1e-4), "the stage changes nothing"


def test_storage_in_another_type_is_ruined() -> None:
    """Why it is refused: a bf16 engine casts all floats, and of packed weights that are stored as fp32 half the bytes are then gone."""
    from bitsandbytes.nn import Linear4bit

    def output(storage: torch.dtype) -> torch.Tensor:
        torch.manual_seed(0)
        layer = Linear4bit(64, 64, bias=False, compute_dtype=torch.bfloat16, quant_storage=storage)
        layer.to("cpu")  # quantises
        with torch.no_grad():
            return layer.to(torch.bfloat16)(torch.ones(1, 64, dtype=torch.bfloat16))

    assert torch.equal(output(torch.bfloat16), output(torch.uint8))
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        output(torch.float32)
