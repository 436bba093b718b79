"""Rank job: train two updates of many specs, one after the other, and each again from its first checkpoint."""

from __future__ import annotations

import shutil
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ftcore import dist
from ftcore.checkpoint.layout import CURSOR, checkpoint_path
from ftcore.checkpoint.manifest import read_manifest
from ftcore.data.prepared import ModelSource
from ftcore.dist import Ranks
from ftcore.engine_state import owned_slices, require_carriable
from ftcore.run import build_engine, restore
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.train.loop import Trainer
from tests.ranks.engine_facts import allow_fp16
from tests.ranks.jobs import make_job, make_run, read_lines

UPDATES = 2


@dataclass
class CellOutcome:
    """What became of one spec, on rank 0."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    resumed_losses: list[float] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    """Trained parameters that the two updates did not change on any rank."""
    different: list[str] = field(default_factory=list)
    """Files of the last checkpoint that differ when the second update follows a resume."""
    error: str = ""


def train_cells(rank: int, world_size: int, folder: str, specs: dict[str, Spec], source: ModelSource, samples: str) -> dict[str, CellOutcome]:
    """Outcome of each spec; an error is one that both ranks met, since a rank that fails alone leaves the other waiting."""
    ranks = dist.start()
    allow_fp16()
    outcomes = {}
    for name, spec in specs.items():
        outcome = CellOutcome()
        try:
            _train_and_resume(Path(folder) / name, spec, source, samples, ranks, outcome)
        except Exception:  # noqa: BLE001  which one, and where, is what the table's maker wants to know
            outcome.error = traceback.format_exc()
        outcomes[name] = outcome
        dist.barrier()
    dist.stop()
    return outcomes


def _train_and_resume(run: Path, spec: Spec, source: ModelSource, samples: str, ranks: Ranks, outcome: CellOutcome) -> None:
    if ranks.is_first:
        make_run(run, spec, ranks.world_size)
    dist.barrier()
    outcome.unchanged = _train(run, spec, source, samples, ranks)
    run_dir = RunDir(run)
    last = checkpoint_path(run_dir.checkpoints, UPDATES)
    dist.barrier()
    if ranks.is_first:
        lines = read_lines(run_dir.metrics)
        outcome.losses, outcome.norms = [line["loss"] for line in lines], [line["grad_norm"] for line in lines]
        first = _digests(last)
        shutil.rmtree(last)
    dist.barrier()
    _train(run, spec, source, samples, ranks)
    if ranks.is_first:
        outcome.resumed_losses = [line["loss"] for line in read_lines(run_dir.metrics)]
        outcome.different = sorted(path for path, digest in _digests(last).items() if first.get(path) != digest)
        shutil.rmtree(run)


def _digests(checkpoint: Path) -> dict[str, str]:
    return {entry.path: entry.digest for entry in read_manifest(checkpoint).files if entry.path != CURSOR}


def _train(run: Path, spec: Spec, source: ModelSource, samples: str, ranks: Ranks) -> list[str]:
    """Trains from the newest checkpoint; names of the trained parameters that stayed as they were."""
    job = make_job(RunDir(run), spec, source, samples)
    engine = build_engine(job, ranks)
    try:
        require_carriable(engine)
        before = [(owned.name, owned.view(owned.flat).clone()) for owned in owned_slices(engine)]
        Trainer(engine, job, restore(engine, job)).run()
        moved = {owned.name for owned, (_, old) in zip(owned_slices(engine), before, strict=True) if not torch.equal(owned.view(owned.flat), old)}
        every = {name for name, _ in before}
        held = dist.gather_objects((every, moved), ranks)
    finally:
        engine.deepspeed.destroy()
    return sorted(set().union(*(names for names, _ in held)) - set().union(*(changed for _, changed in held)))
