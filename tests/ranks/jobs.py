"""Functions that rank tests run on real ranks; module-level, so that the fork server can find them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ftcore import dist
from ftcore.batch.window import UpdateSequence
from ftcore.data.mix import SampleMix
from ftcore.data.prepared import ModelSource
from ftcore.dist import Ranks
from ftcore.engine import Engine
from ftcore.engine_fields import MASTER
from ftcore.engine_state import slice_states
from ftcore.run import build_engine, restore
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.stream.prepare import prepare_stream
from ftcore.train.loop import Job, Trainer
from launcher.ds_config import render_ds_config

ATTENTION_SHARE = 1 / (12 * 32)


@dataclass
class TrainedRank:
    """What one rank brings back from a training run."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    change: dict[str, torch.Tensor] = field(default_factory=dict)
    """Parameter -> change of its fp32 master over the run, float64; whole, assembled from all ranks (rank 0 only)."""
    final: dict[str, torch.Tensor] = field(default_factory=dict)
    """`field/parameter` -> final fp32 master and moments, flattened (rank 0 only)."""
    micro_steps: list[int] = field(default_factory=list)
    samples: dict[int, list[list[int]]] = field(default_factory=dict)
    """Update (1-based) -> sample ids by micro-step."""


def make_run(run: Path, spec: Spec, world_size: int) -> RunDir:
    """A run folder with ds_config.json for that many ranks."""
    run_dir = RunDir(run)
    run.mkdir(parents=True, exist_ok=True)
    resolved = ResolvedSpec(spec=spec, hosts=(Host(name="localhost", slots=world_size),), sources={}, cache_dir=str(run / "cache"))
    run_dir.ds_config.write_text(render_ds_config(resolved))
    run_dir.resolved.write_text(resolved.to_json())
    return run_dir


def make_job(run_dir: RunDir, spec: Spec, source: ModelSource, samples: str) -> Job:
    """The job of a spec on a sample set, or on the stream that the spec names."""
    if spec.data.streaming:
        stream = prepare_stream(spec.data, source, run_dir.path / "cache")
        return Job(spec=spec, run_dir=run_dir, train=None, held_out={}, sequence=None, attention_share=ATTENTION_SHARE, base=source, stream=stream)
    train = SampleMix.open({"train": samples})
    sequence = UpdateSequence(train, batch=spec.batch, train=spec.train)
    return Job(spec=spec, run_dir=run_dir, train=train, held_out={}, sequence=sequence, attention_share=ATTENTION_SHARE, base=source)


def train_runs(rank: int, world_size: int, runs: list[tuple[str, Spec]], source: ModelSource, samples: str) -> list[TrainedRank]:
    """Trains each (run folder, spec) from its newest checkpoint or the start, one after the other in one process group."""
    ranks = dist.start()
    results = [_train_one(Path(folder), spec, source, samples, ranks) for folder, spec in runs]
    dist.barrier()
    dist.stop()
    return results


def _train_one(folder: Path, spec: Spec, source: ModelSource, samples: str, ranks: Ranks) -> TrainedRank:
    if ranks.is_first:
        make_run(folder, spec, ranks.world_size)
    dist.barrier()
    job = make_job(RunDir(folder), spec, source, samples)
    engine = build_engine(job, ranks)
    before = whole_state(engine)
    Trainer(engine, job, restore(engine, job)).run()
    after = whole_state(engine)
    mine = read_lines(job.run_dir.rank_metrics(ranks.rank))
    result = TrainedRank(micro_steps=[line["micro_steps"] for line in mine], samples={line["update"]: line.get("samples", []) for line in mine})
    if ranks.is_first:
        lines = read_lines(job.run_dir.metrics)
        result.losses, result.norms = [line["loss"] for line in lines], [line["grad_norm"] for line in lines]
        result.change = {name.partition("/")[2]: after[name].double() - before[name].double() for name in after if name.startswith(MASTER)}
        result.final = after
    engine.deepspeed.destroy()
    return result


def whole_state(engine: Engine) -> dict[str, torch.Tensor]:
    """`field/parameter` -> fp32 master and moments, flattened, assembled from all ranks' slices, on every rank. Of 8-bit moments codes and scales."""
    mine: dict[str, tuple[int, torch.Tensor]] = {}
    for state in slice_states(engine):
        mine |= {f"{key}/{state.owned.name}": (state.owned.start, value.clone()) for key, value in state.fields.items()}
        mine |= {f"{key}/{state.owned.name}": (0, value.clone()) for key, value in state.whole.items()}
    whole: dict[str, dict[int, torch.Tensor]] = {}
    for held in dist.gather_objects(mine, engine.ranks):
        for name, (start, values) in held.items():
            whole.setdefault(name, {})[start] = values
    return {name: torch.cat([pieces[start] for start in sorted(pieces)]) for name, pieces in whole.items()}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines; the last one may be in the middle of being written."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
