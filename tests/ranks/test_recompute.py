"""Activation checkpointing changes no gradient, in any stage, under any rule, also where dropout draws random numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ftcore.data.prepared import ModelSource
from ftcore.spec.sections import Spec
from tests.ranks.jobs import train_runs
from tests.ranks.pool import RankPool
from tests.ranks.small_model import save_small_llama
from tests.ranks.specs import make_spec, with_section

RULES = ("none", "full", "every:2", "sqrt")
"""Of five layers they recompute none, all, 0 2 4, and 0 2 3."""


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return save_small_llama(tmp_path_factory.mktemp("deep") / "model", layers=5)


def make(stage: int, method: str, rule: str) -> Spec:
    spec = with_section(make_spec(stage, method=method, updates=2), "train", gradient_checkpointing=rule)
    return with_section(spec, "zero", overrides={"zero_optimization": {"stage3_param_persistence_threshold": 0}}) if stage == 3 else spec


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_recomputing_changes_no_gradient(stage: int, deep: ModelSource, pool: RankPool, small: tuple[ModelSource, str], tmp_path: Path) -> None:
    """LoRA with dropout under every rule, and full; each rank's gradient is the same to the bit, and reduced once."""
    asked = [("lora", rule) for rule in RULES] + [("full", rule) for rule in ("none", "sqrt")]
    runs = [(str(tmp_path / str(index)), make(stage, method, rule)) for index, (method, rule) in enumerate(asked)]
    results = dict(zip(asked, pool.run(train_runs, 2, runs, deep, small[1], logs=tmp_path / "logs")[0], strict=True))
    for (method, rule), result in results.items():
        plain = results[method, "none"]
        assert (result.losses, result.norms) == (plain.losses, plain.norms), (method, rule)
        assert not [name for name, value in plain.final.items() if not torch.equal(result.final[name], value)], (method, rule)
