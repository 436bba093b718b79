"""What the tests of phases run on real ranks."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
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
from tests.ranks.staged_time import StagedTime


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


@dataclasses.dataclass(frozen=True)
class Loop:
    """One rank's loop of one run."""

    seconds: float
    """From the first mark of its attribution until it told of the loop's end."""
    outside_s: float
    """What the loop computed before and after that."""


class Marks:
    """Keeps when a trainer's attribution looks at its clock, and when it tells."""

    def __init__(self, attribution: Attribution) -> None:
        self._taken: list[tuple[float, float]] = []
        """The time, and what this thread has computed until then."""
        self._last_told = 0
        clock, tell = attribution._clock, attribution.tell
        assert isinstance(clock, HostClock)
        self._began = time.thread_time()

        def read() -> float:
            self._taken.append((time.perf_counter(), time.thread_time()))
            return self._taken[-1][0]

        def told(values: Sequence[float]) -> Any:
            # A stretch ends with the next look at the clock.
            self._last_told = len(self._taken)
            return tell(values)

        clock._read, attribution.tell = read, told  # type: ignore[method-assign]

    def loop(self) -> Loop:
        """Of the loop that ends here."""
        (first, before), (last, until) = self._taken[0], self._taken[self._last_told]
        return Loop(last - first, before - self._began + time.thread_time() - until)


def train_planned(rank: int, world_size: int, folder: str, planned: list[Planned], source: ModelSource, samples: str) -> list[Loop]:
    """Trains each of them in one process group."""
    ranks = dist.start()
    loops = [_train(Path(folder), each, source, samples, ranks) for each in planned]
    dist.barrier()
    dist.stop()
    return loops


def _train(folder: Path, planned: Planned, source: ModelSource, samples: str, ranks: Ranks) -> Loop:
    run = folder / planned.name
    if ranks.is_first:
        make_run(run, planned.spec, ranks.world_size)
    dist.barrier()
    job = dataclasses.replace(make_job(RunDir(run), planned.spec, source, samples), held_out={"eval": SampleSet.open(samples)})
    engine = build_engine(job, ranks)
    trainer = Trainer(engine, job, restore(engine, job))
    if planned.place and ranks.rank == planned.rank:
        plant(trainer, planned.place, planned.seconds)
    marks = Marks(trainer._attribution)
    trainer.run()
    loop = marks.loop()
    engine.deepspeed.destroy()
    assert torch_dist.all_reduce.__module__ == "torch.distributed.distributed_c10d", "torch is left as it was"
    return loop


def wait_by_turns(rank: int, world_size: int, file: str, shift: float) -> dict[str, ToldPhases]:
    """Collectives of every kind in which rank 1 is 0.2 s late, on clocks that are `shift` seconds apart; what was told of each."""
    ranks, staged = dist.start(), StagedTime(Path(file))
    attribution = Attribution(ranks, measures=True, clock=staged.clock(shift * rank), clock_id=f"{host_clock_id()} {rank}" if shift else None)
    attribution.listen()
    value, whole = torch.ones(1000), [torch.empty(1000) for _ in range(world_size)]
    told: dict[str, ToldPhases] = {}
    late = (lambda: staged.move(0.2)) if rank == 1 else staged.comes_with_next_read

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
            late()
            collective()
        stretch(name)
    with attribution.during(BACKWARD):
        _wait_at_once(rank, staged, value)
    stretch("waits at once")
    with attribution.during(BACKWARD):
        _overlap(rank, staged, value)
    stretch("overlapped")
    group = dist.HostGroup(ranks)
    with attribution.during(DATA_WAIT):
        # Another thread's group, as that of a stream's readers, while the rank waits for data.
        staged.move(0.2) if rank == 1 else staged.comes()
        group.gather(rank)
    stretch("beside")
    attribution.close()
    dist.stop()
    return told


def _wait_at_once(rank: int, staged: StagedTime, value: torch.Tensor) -> None:
    if rank == 1:
        staged.move(0.2)
        torch_dist.all_reduce(value, async_op=True).wait()
        return
    work = torch_dist.all_reduce(value, async_op=True)
    staged.comes_with_next_read()
    work.wait()


def _overlap(rank: int, staged: StagedTime, value: torch.Tensor) -> None:
    """Rank 1 comes 0.1 s late to a collective that both wait for 0.3 s after the beginning."""
    if rank == 1:
        staged.move(0.1)
        work = torch_dist.all_reduce(value, async_op=True)
        staged.move_on(0.2)
    else:
        begun = staged.now
        work = torch_dist.all_reduce(value, async_op=True)
        staged.comes()
        staged.wait_for(begun + 0.29)
    work.wait()


def lines_of(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]
