"""What the tests of phases run on real ranks."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist

from benchmarks.planted import plant
from ftcore import dist
from ftcore.attribution.attribution import Attribution
from ftcore.attribution.clocks import HostClock, host_clock_id
from ftcore.attribution.phases import BACKWARD, DATA_WAIT, FORWARD
from ftcore.attribution.told import ToldPhases
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource
from ftcore.dist import Ranks
from ftcore.run import build_engine, restore
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import EvaluationSection, Spec
from ftcore.train.loop import Trainer
from tests.ranks.jobs import make_job, make_run
from tests.ranks.specs import make_spec, with_section


@dataclasses.dataclass(frozen=True)
class Planned:
    """One run, and where which rank of it is slow."""

    name: str
    spec: Spec
    place: str = ""
    rank: int = 0
    seconds: float = 0.0


def phase_spec(stage: int, updates: int, *, save_steps: int = 0, eval_steps: int = 0, logging_steps: int = 1) -> Spec:
    spec = with_section(make_spec(stage, updates=updates, save_steps=save_steps), "logging", logging_steps=logging_steps)
    return dataclasses.replace(spec, evaluation=EvaluationSection(eval_steps=eval_steps))


def train_planned(rank: int, world_size: int, folder: str, planned: list[Planned], source: ModelSource, samples: str) -> list[float]:
    """Trains each of them in one process group; the wall seconds of each loop on this rank."""
    ranks = dist.start()
    walls = [_train(Path(folder), each, source, samples, ranks) for each in planned]
    dist.barrier()
    dist.stop()
    return walls


def _train(folder: Path, planned: Planned, source: ModelSource, samples: str, ranks: Ranks) -> float:
    run = folder / planned.name
    if ranks.is_first:
        make_run(run, planned.spec, ranks.world_size)
    dist.barrier()
    job = dataclasses.replace(make_job(RunDir(run), planned.spec, source, samples), held_out={"eval": SampleSet.open(samples)})
    engine = build_engine(job, ranks)
    trainer = Trainer(engine, job, restore(engine, job))
    if planned.place and ranks.rank == planned.rank:
        plant(trainer, planned.place, planned.seconds)
    began = time.perf_counter()
    trainer.run()
    wall = time.perf_counter() - began
    engine.deepspeed.destroy()
    assert torch_dist.all_reduce.__module__ == "torch.distributed.distributed_c10d", "torch is left as it was"
    return wall


def wait_by_turns(rank: int, world_size: int, shift: float) -> dict[str, ToldPhases]:
    """Collectives of every kind in which rank 1 is late, on clocks that are `shift` seconds apart; what was told of each."""
    ranks = dist.start()
    clock = HostClock(lambda: time.perf_counter() + shift * rank) if shift else None
    attribution = Attribution(ranks, measures=True, clock=clock, clock_id=f"{host_clock_id()} {rank}" if shift else None)
    attribution.listen()
    value, whole = torch.ones(1000), [torch.empty(1000) for _ in range(world_size)]
    told: dict[str, ToldPhases] = {}

    def stretch(name: str) -> None:
        for _ in range(5):
            dist.barrier()
        told[name] = attribution.tell(()).phases
        dist.barrier()

    stretch("warm")
    for name, collective in {
        "all_reduce": lambda: torch_dist.all_reduce(value),
        "all_gather": lambda: torch_dist.all_gather(whole, value),
        "objects": lambda: dist.gather_objects({"rank": rank}, ranks),
        "broadcast": lambda: torch_dist.broadcast(value, 1),
    }.items():
        with attribution.during(FORWARD):
            time.sleep(0.2 if rank == 1 else 0.0)
            collective()
        stretch(name)
    with attribution.during(BACKWARD):
        time.sleep(0.2 if rank == 1 else 0.0)
        torch_dist.all_reduce(value, async_op=True).wait()
    stretch("waits at once")
    with attribution.during(BACKWARD):
        time.sleep(0.1 if rank == 1 else 0.0)
        work = torch_dist.all_reduce(value, async_op=True)
        time.sleep(0.3 - (0.1 if rank == 1 else 0.0))
        work.wait()
    stretch("overlapped")
    _beside(attribution, ranks)
    stretch("beside")
    attribution.close()
    dist.stop()
    return told


def _beside(attribution: Attribution, ranks: Ranks) -> None:
    """Another thread's group, as that of a stream's readers, while the rank waits for data."""
    group = dist.HostGroup(ranks)
    with attribution.during(DATA_WAIT):
        time.sleep(0.2 if ranks.rank == 1 else 0.0)
        group.gather(ranks.rank)


def lines_of(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]
