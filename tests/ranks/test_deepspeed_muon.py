"""Why ftlaunch has a Muon of its own: what DeepSpeed 0.19.8's does with clipping and parameter groups. A newer DeepSpeed may do better."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ftcore import dist
from ftcore.data.prepared import ModelSource
from ftcore.engine import Engine, join_process_group
from launcher.ds_config import load_preset
from tests.ranks.gradient_jobs import LENGTHS, load, loss_sum, rows
from tests.ranks.pool import RankPool

Small = tuple[ModelSource, str]
RATE = 0.01


def update_with(rank: int, world_size: int, folder: str, model: str, stage: int) -> tuple[torch.Tensor, float]:
    """The change of all weights over one update clipped to a norm of 1, and the norm that DeepSpeed tells."""
    ranks = dist.start()
    join_process_group(ranks)
    # Its kernels would be compiled for a minute.
    torch._dynamo.config.disable = True
    whole = load(model, torch.float32)
    before = torch.cat([parameter.detach().clone().flatten() for parameter in whole.parameters()])
    muon = {"type": "Muon", "params": {"lr": RATE, "momentum": 0.95, "weight_decay": 0.0, "torch_adam": True, "ns_method": "standard"}}
    sizes = {"train_batch_size": world_size, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    rest = {"gradient_clipping": 1.0, "optimizer": muon, "zero_allow_untested_optimizer": True, "bf16": {"enabled": False}}
    config = load_preset(f"zero{stage}") | sizes | rest
    path = Path(folder) / f"config_{stage}_{rank}.json"
    path.write_text(json.dumps(config))
    engine = Engine(whole, [{"params": list(whole.parameters()), "lr_scale": 0.5, "name": "all"}], path, ranks)
    engine.train()
    mine = rows()[rank::world_size]
    for index, ids in enumerate(mine):
        engine.backward(loss_sum(engine.deepspeed, ids), weight=world_size / sum(length - 1 for length in LENGTHS), last=index == len(mine) - 1)
    assert not any("lr_scale" in group for group in engine.optimizer.param_groups), "the rate of a parameter group is kept now"
    norm = float(engine.step(RATE).grad_norm or 0.0)
    change = torch.cat([parameter.detach().flatten() for parameter in engine.module.parameters()]) - before
    dist.barrier()
    dist.stop()
    return change.double(), norm


def test_deepspeeds_own_muon_clips_the_orthogonalised_update(pool: RankPool, small: Small, tmp_path: Path) -> None:
    found = [pool.run(update_with, 1, str(tmp_path), small[0].path, stage, logs=tmp_path / "logs")[0] for stage in (0, 1)]
    (plain, norm), (sharded, sharded_norm) = found
    assert (plain - sharded).norm() / plain.norm() > 0.2, "stage 1 steps as stage 0 does now"
    assert norm < 3 and sharded_norm == pytest.approx(19, abs=2), "the norm told is that of the gradient now"
