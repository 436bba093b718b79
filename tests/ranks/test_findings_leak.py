"""A leak planted into a real rank's model: the run's own watch tells of it, and the doctor finds it."""

from __future__ import annotations

from pathlib import Path

import torch

from ftcore import dist
from ftcore.data.prepared import ModelSource
from ftcore.run import build_engine, restore
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.train.loop import Trainer
from launcher.findings.examine import examine
from launcher.findings.finding import WRONG
from tests.ranks.jobs import make_job, make_run
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec

KEPT_BYTES = 512 * 1024
"""An update."""
UPDATES = 100
"""Ten of warm-up and three windows of 21 are needed."""


def leaking_run(rank: int, world_size: int, folder: str, spec: Spec, source: ModelSource, samples: str) -> None:
    """A run of which each forward pass in training leaves a tensor behind."""
    ranks = dist.start()
    run_dir = make_run(Path(folder), spec, world_size)
    job = make_job(run_dir, spec, source, samples)
    engine = build_engine(job, ranks)
    kept: list[torch.Tensor] = []

    def keep(*_: object) -> None:
        kept.append(torch.ones(KEPT_BYTES // 4))

    engine.module.register_forward_hook(keep)
    Trainer(engine, job, restore(engine, job)).run()
    dist.stop()


def test_a_planted_leak_is_found(pool: RankPool, small: tuple[ModelSource, str], tmp_path: Path) -> None:
    spec = make_spec(0, updates=UPDATES, budget=400)
    pool.run(leaking_run, 1, str(tmp_path / "run"), spec, *small, logs=tmp_path / "logs")
    leak = next(each for each in examine(tmp_path / "run").findings if each.kind == "memory_leak")
    assert (leak.rank, leak.severity) == (0, WRONG) and "memory grows by" in leak.what
    assert f"float32 [{KEPT_BYTES // 4}] on cpu" in leak.causes[0] and leak.causes[0].startswith("likely: ")
    assert leak.evidence[0].file == RunDir(tmp_path / "run").events.name
    assert leak.evidence[1].file == "metrics/rank_0.jsonl"
