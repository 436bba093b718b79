"""Rank job: does each attribute of DeepSpeed that engine_state touches hold what it is taken for? Run on real engines of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ftcore import dist
from ftcore.batch.cursor import Cursor
from ftcore.data.prepared import ModelSource
from ftcore.dist import Ranks
from ftcore.engine import Engine
from ftcore.engine_fields import MASTER
from ftcore.engine_state import (
    loss_scale_state,
    owned_slices,
    publish_masters,
    require_carriable,
    set_loss_scale_state,
    slice_states,
    slices_to_load,
    trained_shapes,
)
from ftcore.run import build_engine
from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.train.loop import Trainer
from tests.ranks.jobs import make_job, make_run


@dataclass
class EngineFacts:
    """What one kind of engine showed, on rank 0; lists are of parameters that are not as they should be."""

    trained: set[str] = field(default_factory=set)
    covered_wrongly: list[str] = field(default_factory=list)
    """Parameters whose slices over all ranks do not cover every element once."""
    fields: set[str] = field(default_factory=set)
    scalars: set[str] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)
    """Of masters and moments."""
    unpublished: list[str] = field(default_factory=list)
    """Parameters whose forward weights are not the masters written by hand."""
    moments_unused: list[str] = field(default_factory=list)
    """Parameters that an update moved although their first moment was set to zero and their second to a huge value."""
    loss_scale: dict[str, float] = field(default_factory=dict)
    loss_scale_set: dict[str, float] = field(default_factory=dict)
    refusal: str = ""


def allow_fp16() -> None:
    """DeepSpeed refuses fp16 on CPUs without instructions for it; torch computes it all the same."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    accelerator.is_fp16_supported = lambda: True


def look_at_engines(rank: int, world_size: int, folder: str, specs: dict[str, Spec], source: ModelSource, samples: str) -> dict[str, EngineFacts]:
    """Facts of an engine of each spec, after two updates."""
    ranks = dist.start()
    allow_fp16()
    facts = {}
    for name, spec in specs.items():
        run_dir = RunDir(Path(folder) / name)
        if ranks.is_first:
            make_run(run_dir.path, spec, world_size)
        dist.barrier()
        job = make_job(run_dir, spec, source, samples)
        engine = build_engine(job, ranks)
        engine.train()
        trainer = Trainer(engine, job, Cursor(order_seed=spec.train.seed, data_fingerprint=job.train.fingerprint))
        trainer.train_update(0)
        trainer.train_update(1)
        facts[name] = _facts(engine, trainer)
        engine.deepspeed.destroy()
    return facts


def _facts(engine: Engine, trainer: Trainer) -> EngineFacts:
    facts = EngineFacts(trained=set(trained_shapes(engine)), covered_wrongly=_covered_wrongly(engine))
    for state in slice_states(engine):
        facts.fields |= set(state.fields)
        facts.scalars |= set(state.scalars)
        facts.dtypes |= {str(value.dtype) for value in state.fields.values()}
    try:
        require_carriable(engine)
    except CheckpointError as error:
        facts.refusal = str(error)
    facts.loss_scale = loss_scale_state(engine)
    if facts.loss_scale:
        set_loss_scale_state(engine, {"cur_scale": 64.0, "cur_iter": 7.0, "last_overflow_iter": 3.0, "cur_hysteresis": 1.0})
        facts.loss_scale_set = loss_scale_state(engine)
    facts.unpublished = _unpublished(engine)
    facts.moments_unused = _moments_unused(engine, trainer)
    return facts


def _covered_wrongly(engine: Engine) -> list[str]:
    held: dict[str, list[tuple[int, int]]] = {}
    for pieces in dist.gather_objects([(owned.name, owned.start, owned.numel) for owned in owned_slices(engine)], engine.ranks):
        for name, start, numel in pieces:
            held.setdefault(name, []).append((start, start + numel))
    wrong = []
    for name, shape in trained_shapes(engine).items():
        pieces = sorted(held.get(name, []))
        edges = [0, *(end for _, end in pieces)]
        if [start for start, _ in pieces] != edges[:-1] or edges[-1] != torch.Size(shape).numel():
            wrong.append(name)
    return wrong


def _by_hand(name: str, start: int, numel: int) -> torch.Tensor:
    """Values that differ along a parameter and that bf16 and fp16 hold exactly."""
    return (torch.arange(start, start + numel) % 61 - 30 + len(name) % 7).float() / 256


@torch.no_grad()
def _unpublished(engine: Engine) -> list[str]:
    for owned in slices_to_load(engine):
        owned.view(owned.flat).copy_(_by_hand(owned.name, owned.start, owned.numel))
    publish_masters(engine)
    return [name for name, weight in _forward_weights(engine) if not torch.equal(weight.float().view(-1), _by_hand(name, 0, weight.numel()))]


def _forward_weights(engine: Engine) -> Iterator[tuple[str, torch.Tensor]]:
    from deepspeed.runtime.zero import GatheredParameters

    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad:
            with GatheredParameters([parameter], enabled=engine.stage == 3):
                yield name, parameter.detach().cpu().clone()


@torch.no_grad()
def _moments_unused(engine: Engine, trainer: Trainer) -> list[str]:
    for state in slice_states(engine):
        for field_name, value in state.fields.items():
            if field_name != MASTER:
                value.fill_(1e12 if field_name == "exp_avg_sq" else 0.0)
    before = [(state.owned.name, state.fields[MASTER].clone()) for state in slice_states(engine)]
    with torch.enable_grad():
        trainer.train_update(2)
    after = [state.fields[MASTER] for state in slice_states(engine)]
    moved = [name for (name, old), new in zip(before, after, strict=True) if (new - old).abs().max() > 1e-6]
    return sorted({name for names in dist.gather_objects(moved, engine.ranks) for name in names})


def refuses_unknown_state(rank: int, world_size: int, folder: str, spec: Spec, source: ModelSource, samples: str) -> str:
    """What is said of an optimizer's state that is neither moments nor codes of a known kind."""
    ranks: Ranks = dist.start()
    engine = build_engine(make_job(RunDir(Path(folder)), spec, source, samples), ranks)
    owned = owned_slices(engine)[0]
    engine.optimizer.optimizer.state[owned.flat] = {"codes": torch.zeros(owned.flat.numel(), dtype=torch.uint8)}
    try:
        slice_states(engine)
    except CheckpointError as error:
        return f"{error.exit_status} {error}"
    return ""
