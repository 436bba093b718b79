"""Rank jobs that are asked to stop by a real signal at a chosen moment, and then go on."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ftcore import agreement, dist
from ftcore.agreement import Agreement
from ftcore.checkpoint.saver import Saver
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource
from ftcore.dist import Ranks
from ftcore.run import build_engine, restore
from ftcore.spec.errors import FtError, PreemptedError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.stop_request import STOP_SIGNALS, StopRequest, take_signals
from ftcore.train import evaluate as evaluate_module
from ftcore.train import preemption
from ftcore.train import step as step_module
from ftcore.train.loop import Job, Trainer
from tests.ranks.jobs import make_job, make_run, whole_state

LIMIT_S = 60.0
"""Of what takes milliseconds."""


@dataclass(frozen=True)
class Moment:
    """Where a rank sends itself a signal."""

    where: str
    """load, data, forward, backward, step, save, evaluate, or empty for never."""
    update: int = 0
    """Updates done then."""
    ranks: tuple[int, ...] = (0,)
    signals: tuple[int, ...] = (signal.SIGUSR2,)
    settles: bool = False
    """Whether every rank stays there until it has heard of the signal."""
    full_disk_from: int | None = None
    """The last rank's disk takes nothing of the state after so many updates or more."""
    fails_once_saved: bool = False
    """Training ends, as if by a kill, at the first such moment after the last update was saved."""

    @property
    def folder(self) -> str:
        return f"{self.where or 'whole'}_{self.update}_{'_'.join(map(str, self.ranks))}"


@dataclass(frozen=True)
class Ended:
    """How training ended on a rank."""

    status: int
    update: int
    text: str = ""
    state: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    """Whole masters and moments, by rank 0 of a run that came to its end."""


class Signaller:
    """Sends the signals of a moment once, when told that it has come."""

    def __init__(self, moment: Moment, rank: int, updates: int) -> None:
        self.moment, self._rank, self._is_sent = moment, rank, False
        self._settled = threading.Event()
        self._last_chance = updates - 2 if moment.where and moment.update < updates - 2 else -1
        """Updates done when the run must hear of the signal, to stop before its end."""
        self.agreement: Agreement | None = None
        """Of this launch, once there is one."""

    def at(self, where: str, update: int) -> None:
        if self.moment.where == "save" and (where, update) == ("data", self.moment.update):
            # The writer is a thread of its own: without this the run might be over before it begins.
            assert self._settled.wait(LIMIT_S)
        if (where, update) == ("data", self._last_chance):
            # Updates take milliseconds, and so may the threads that hear of it: whichever had more to do, the run is not over before.
            self._wait_until_heard()
        if (where, update) != (self.moment.where, self.moment.update) or self._is_sent:
            return
        self._is_sent = True
        for signum in self.moment.signals if self._rank in self.moment.ranks else ():
            os.kill(os.getpid(), signum)
        if where != "load":
            self.settle()
        self._settled.set()

    def settle(self) -> None:
        """Stays here where the moment settles; at the load that is once there is an agreement."""
        if self.moment.settles:
            self._wait_until_heard()

    def _wait_until_heard(self) -> None:
        agreement = self.agreement
        assert agreement is not None
        wait_until(lambda: agreement._held or agreement._target is not None)


def wait_until(condition: Callable[[], bool]) -> None:
    """Raises AssertionError when it does not come true in LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)


def stop_and_resume(
    rank: int, world_size: int, folder: str, spec: Spec, moments: list[Moment], source: ModelSource, samples: str
) -> dict[str, tuple[Ended, Ended]]:
    """By moment's folder: how the run ended, and how it ended when it was resumed."""
    runs = {moment.folder: [moment, Moment("")] for moment in moments}
    return {name: (ended[0], ended[1]) for name, ended in train_legs(rank, world_size, folder, spec, runs, source, samples).items()}


def train_legs(rank: int, world_size: int, folder: str, spec: Spec, runs: dict[str, list[Moment]], source: ModelSource, samples: str) -> dict[str, list[Ended]]:
    """By run: how each of its launches ended, one after the other."""
    current: list[StopRequest] = []
    take_signals(lambda: _ask(current))
    agreement.POLL_S, preemption.PAUSES_S = 0.02, (0.1,)
    ranks = dist.start()
    ended: dict[str, list[Ended]] = {}
    for name, legs in runs.items():
        run, ended[name] = Path(folder) / name, list[Ended]()
        if ranks.is_first:
            make_run(run, spec, world_size)
        dist.barrier()
        for leg, moment in enumerate(legs):
            current.append(StopRequest())
            job = dataclasses.replace(make_job(RunDir(run), spec, source, samples), held_out={"eval": SampleSet.open(samples)})
            ended[name].append(_train(job, ranks, Signaller(moment, rank, spec.train.max_steps), current[-1], f"{name}/{leg}"))
            # A second signal that was not taken yet would ask the next launch.
            wait_until(lambda: not signal.sigpending() & set(STOP_SIGNALS))
    dist.barrier()
    dist.stop()
    return ended


def _ask(requests: list[StopRequest]) -> None:
    requests[-1].ask()


def _train(job: Job, ranks: Ranks, signaller: Signaller, request: StopRequest, name: str) -> Ended:
    signaller.at("load", 0)
    agreed = signaller.agreement = Agreement(dist.shared_store(name), rank=ranks.rank, world_size=ranks.world_size, request=request)
    if signaller.moment.where == "load":
        signaller.settle()
    engine = build_engine(job, ranks)
    trainer = Trainer(engine, job, restore(engine, job), agreed)

    def sink(handle: int, data: memoryview) -> int:
        # The trainer may be further on by now.
        done, full_from = written_update(handle), signaller.moment.full_disk_from
        signaller.at("save", done)
        if full_from is not None and done >= full_from and ranks.rank == ranks.world_size - 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(handle, data)

    trainer._saver = Saver(engine, job.run_dir.checkpoints, spec=job.spec, base=job.base, sink=sink)
    undo = _watch(trainer, signaller)
    status, text, state = 0, "", {}
    try:
        trainer.run()
        state = whole_state(engine)
    except FtError as error:
        status, text = error.exit_status, str(error)
        if not isinstance(error, PreemptedError):
            dist.barrier()
    finally:
        undo()
    agreed.close()
    engine.deepspeed.destroy()
    return Ended(status, trainer.cursor.next_update, text, state if ranks.is_first else {})


def written_update(handle: int) -> int:
    """The update whose checkpoint the file belongs to."""
    return int(re.findall(r"update_(\d{8})", os.readlink(f"/proc/self/fd/{handle}"))[-1])


def _watch(trainer: Trainer, signaller: Signaller) -> Callable[[], None]:
    """Tells the signaller of each part of an update just before it; returns what undoes that."""
    undone: list[Callable[[], None]] = []

    def before(owner: Any, name: str, where: str) -> None:
        original = getattr(owner, name)

        def told(*arguments: Any, **options: Any) -> Any:
            done = trainer.cursor.next_update
            signaller.at(where, done)
            if signaller.moment.fails_once_saved and where == signaller.moment.where and trainer._saver.saved_update == done == signaller.moment.update:
                raise FtError("killed")
            return original(*arguments, **options)

        setattr(owner, name, told)
        undone.append(lambda: setattr(owner, name, original))

    before(trainer._feeder, "next", "data")
    before(step_module, "token_loss_sum", "forward")
    before(trainer.engine, "backward", "backward")
    before(trainer.engine, "step", "step")
    before(evaluate_module, "_sums_by_sample", "evaluate")

    def undo_all() -> None:
        for undo in undone:
            undo()

    return undo_all
