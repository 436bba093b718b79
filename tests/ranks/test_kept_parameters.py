"""Parameters that are computed in fp32 beside others in bf16, and why that takes bf16_autocast."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcore import dist
from ftcore.data.prepared import ModelSource
from ftcore.run import build_engine, restore
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import ParameterGroup, Spec
from ftcore.train.loop import Trainer
from tests.ranks.jobs import make_job, make_run, read_lines
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section
from tests.ranks.test_resume import copy_at

Small = tuple[ModelSource, str]
HEAD, MLP = "lm_head", "model.layers.1.mlp.up_proj"
# The head is tied to the embeddings, whose name its weight goes by.
KEPT = (ParameterGroup(pattern="*embed_tokens*", keep_in_fp32=True), ParameterGroup(pattern="*layers.0.*norm*", learning_rate=1e-3, keep_in_fp32=True))


Types = dict[str, tuple[torch.dtype, torch.dtype]]


def trained_types(rank: int, world_size: int, runs: list[tuple[str, Spec]], source: ModelSource, samples: str) -> list[Types]:
    """Trains each run; module -> type of its weight and of what it gives, in the last forward pass."""
    ranks, found = dist.start(), []
    for folder, spec in runs:
        if rank == 0:
            make_run(Path(folder), spec, world_size)
        dist.barrier()
        job = make_job(RunDir(Path(folder)), spec, source, samples)
        engine = build_engine(job, ranks)
        seen: Types = {}
        for name in (HEAD, MLP, "model.norm", "model.layers.0.input_layernorm"):
            engine.module.get_submodule(name).register_forward_hook(partial(note, seen, name))
        Trainer(engine, job, restore(engine, job)).run()
        found.append(seen)
        engine.deepspeed.destroy()
    dist.barrier()
    dist.stop()
    return found


def note(seen: Types, name: str, module: Any, _arguments: Any, output: torch.Tensor) -> None:
    seen[name] = (module.weight.dtype, output.dtype)


def autocast(stage: int, groups: tuple[ParameterGroup, ...] = KEPT) -> Spec:
    spec = with_section(make_spec(stage, updates=3, save_steps=1), "train", precision="bf16_autocast", gradient_checkpointing="full")
    return with_section(spec, "optimizer", parameter_groups=groups)


def test_kept_modules_compute_in_fp32(pool: RankPool, small: Small, tmp_path: Path) -> None:
    specs = {"0": autocast(0), "2": autocast(2), "3": autocast(3), "plain": autocast(2, ())}
    # DeepSpeed's own key, in an engine of bf16: it spares buffers, not parameters.
    specs["bf16"] = with_section(make_spec(2, updates=3, precision="bf16"), "train", keep_in_fp32=("norm", "lm_head"))
    runs = [(str(tmp_path / name), spec) for name, spec in specs.items()]
    found = dict(zip(specs, pool.run(trained_types, 2, runs, *small, logs=tmp_path / "logs")[0], strict=True))
    whole, half = torch.float32, torch.bfloat16
    for stage in "023":
        assert found[stage][HEAD] == (whole, whole) and found[stage][MLP] == (whole, half)
        assert found[stage]["model.layers.0.input_layernorm"] == (whole, whole)
    assert found["plain"][HEAD] == (whole, half)
    assert found["bf16"][HEAD] == (half, half) and found["bf16"]["model.norm"] == (half, half)
    losses = {name: [line["loss"] for line in read_lines(tmp_path / name / "metrics.jsonl")] for name in specs}
    assert losses["2"] != losses["plain"]
    for stage in "03":
        assert losses[stage] == pytest.approx(losses["2"], abs=5e-3)
    copy_at(tmp_path / "3", tmp_path / "resumed", 2)
    pool.run(trained_types, 2, [(str(tmp_path / "resumed"), specs["3"])], *small, logs=tmp_path / "logs")
    assert [line["loss"] for line in read_lines(tmp_path / "resumed" / "metrics.jsonl")] == losses["3"]
