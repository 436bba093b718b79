"""kill -9 of a small run, again and again, on ranks forked from a server that has imported everything: a kill and its resume cost about a second."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil
from safetensors.torch import load_file

from ftcore import dist
from ftcore.data.prepared import ModelSource
from ftcore.run import build_engine, restore
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.train.loop import Trainer
from tests.ranks.jobs import make_job, make_run, read_lines
from tests.ranks.pool import kept_port

LIMIT_S = 300.0
"""Of one attempt."""
PEERS_S = 0.5
"""How long the other ranks live on after one was killed, as until a supervisor notices."""


def rank_main(rank: int, port: int, given: Given, attempt: str) -> None:
    """Trains a rank of the run from its newest checkpoint to its end; says when that is loaded, by a file."""
    run_dir = RunDir(given.folder)
    handle = os.open(given.folder / f"rank_{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": given.world_size, "LOCAL_WORLD_SIZE": given.world_size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    ranks = dist.start()
    job = make_job(run_dir, given.spec, given.source, given.samples)
    engine = build_engine(job, ranks)
    trainer = Trainer(engine, job, restore(engine, job))
    if ranks.is_first:
        (given.folder / attempt).touch()
    trainer.run()
    dist.barrier()
    os._exit(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What is trained, and where."""

    folder: Path
    spec: Spec
    world_size: int
    source: ModelSource
    samples: str

    @property
    def last(self) -> Path:
        """The checkpoint that the run ends with."""
        return self.folder / "checkpoints" / f"update_{self.spec.train.max_steps:08d}"


@dataclass(slots=True)
class Tally:
    """What a campaign did."""

    kills: Counter[str] = field(default_factory=Counter)
    """By what the run was doing: loading, training, saving."""
    single: int = 0
    """Kills of one rank alone."""
    resumes: int = 0
    runs: int = 0
    damaged: int = 0
    """Files of newest checkpoints that were damaged between a kill and its resume."""
    passed_over: int = 0
    """Checkpoints that a resume said it passed over, unfinished ones too."""
    full_disks: int = 0
    """Times that the disk was filled while a run trained."""
    failed_on_full_disk: int = 0
    """Of those, ends by the ranks themselves; the others were killed, or went on without."""
    mismatches: list[str] = field(default_factory=list)


class Campaign:
    """Kills runs of one spec until enough kills were had, and compares each run's end with an unbroken one."""

    def __init__(self, given: Given, *, seed: int, damages: bool = False, fills_disk: bool = False) -> None:
        self.given, self.tally = given, Tally()
        self._random = random.Random(seed)
        self._damages, self._fills_disk = damages, fills_disk
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.e2e.kill_harness", "ftcore.export"])
        self._attempt = 0
        self._load_s = 0.6
        """How long the last attempt took until its checkpoint was loaded."""

    def run(self, kills: int) -> Tally:
        """Raises AssertionError when an attempt ends by itself in any way but well, or takes too long."""
        whole = self.fresh("unbroken")
        assert self.attempt(whole, None)
        number = 0
        while self.tally.kills.total() < kills:
            number += 1
            broken = self.fresh(f"killed_{number}")
            while self.tally.kills.total() < kills and not self.attempt(broken, self._moment()):
                self._damage(broken)
                self.tally.resumes += 1
            if not broken.last.is_dir():
                assert self.attempt(broken, None)
            self.tally.runs += 1
            self.tally.passed_over += sum("checkpoint skipped" in str(event.get("text")) for event in read_lines(RunDir(broken.folder).events))
            self.tally.mismatches += differences(whole, broken)
            shutil.rmtree(broken.folder)
        return self.tally

    def fresh(self, name: str) -> Given:
        """A run that has not begun."""
        given = self.given
        run = Given(folder=given.folder / name, spec=given.spec, world_size=given.world_size, source=given.source, samples=given.samples)
        make_run(run.folder, run.spec, run.world_size)
        return run

    def _moment(self) -> str:
        return self._random.choices(("loading", "training", "saving", "full"), (1, 2, 2, 2 if self._fills_disk else 0))[0]

    def attempt(self, given: Given, moment: str | None) -> bool:
        """Whether the run came to its end before the moment to kill it, or there was none."""
        self._attempt += 1
        with kept_port() as port:
            return self._attempt_on(port, given, f"loaded_{self._attempt}", moment)

    def _attempt_on(self, port: int, given: Given, mark: str, moment: str | None) -> bool:
        arguments = [(rank, port, given, mark) for rank in range(given.world_size)]
        processes = [self._context.Process(target=rank_main, args=each, daemon=True) for each in arguments]
        seen = partials(given)
        for process in processes:
            process.start()
        try:
            if moment is None or not self._reached(given, moment, given.folder / mark, processes):
                return self._ended_well(processes, given, may_fail=moment == "full")
            self._kill(processes, "loading" if not (given.folder / mark).exists() else "saving" if partials(given) - seen else "training")
            return False
        finally:
            kill_all([process.pid for process in processes])
            for process in processes:
                process.join()
            self._filler.unlink(missing_ok=True)

    def _reached(self, given: Given, moment: str, mark: Path, processes: list[Any]) -> bool:
        """Waits for the moment; False when a rank ended before."""
        started, extra = time.monotonic(), self._random.random()
        wanted = started + self._load_s * extra if moment == "loading" else None
        seen, was_loaded = partials(given), False
        while all(process.exitcode is None for process in processes):
            now = time.monotonic()
            assert now - started < LIMIT_S, "the moment to kill at never came"
            if wanted is None and mark.exists():
                self._load_s = min(self._load_s, now - started) if was_loaded else now - started
                was_loaded = True
                if moment == "full":
                    self._fill()
                    wanted = now + 0.3 + extra
                elif moment == "training":
                    wanted = now + 0.5 * extra
                elif partials(given) - seen:
                    wanted = now + 0.01 * extra
            if wanted is not None and now >= wanted:
                return True
            time.sleep(0.0005)
        return False

    def _kill(self, processes: list[Any], doing: str) -> None:
        if self._random.random() < 0.25:
            self.tally.single += 1
            kill_all([self._random.choice(processes).pid])
            wait([process.sentinel for process in processes], PEERS_S)
            time.sleep(PEERS_S * self._random.random())
        kill_all([process.pid for process in processes])
        self.tally.kills[doing] += 1

    def _ended_well(self, processes: list[Any], given: Given, *, may_fail: bool) -> bool:
        """Whether all ranks trained to the end; only a full disk may keep them from it."""
        deadline = time.monotonic() + (PEERS_S if may_fail else LIMIT_S)
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        statuses = [process.exitcode for process in processes]
        if may_fail and set(statuses) != {0}:
            self.tally.failed_on_full_disk += 1
            return False
        logs = "".join((given.folder / f"rank_{rank}.log").read_text(errors="replace")[-2000:] for rank in range(given.world_size))
        assert set(statuses) == {0}, f"ranks ended with {statuses}\n{logs}"
        return True

    def _damage(self, given: Given) -> None:
        """Cuts or flips a random file of the newest checkpoint, when an older whole one is there to go back to."""
        checkpoints = sorted(path for path in (given.folder / "checkpoints").glob("update_*") if path.suffix == "")
        if not self._damages or len(checkpoints) < 2 or self._random.random() < 0.5:
            return
        path = self._random.choice([path for path in sorted(checkpoints[-1].rglob("*")) if path.is_file()])
        content = bytearray(path.read_bytes())
        place = self._random.randrange(len(content))
        if self._random.random() < 0.5:
            del content[place:]
        else:
            content[place] ^= 1 << self._random.randrange(8)
        path.write_bytes(content)
        self.tally.damaged += 1

    @property
    def _filler(self) -> Path:
        return self.given.folder / "filler"

    def _fill(self) -> None:
        """Leaves no room on the disk that the runs lie on."""
        self.tally.full_disks += 1
        with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as file:
            for bytes_each in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(bytes_each)) == bytes_each:
                        pass


def chosen_seed() -> int:
    """Of a campaign's choices: the same in each run, or a new one with FTLAUNCH_EXPLORE=1."""
    return random.randrange(1 << 32) if os.environ.get("FTLAUNCH_EXPLORE") else 20


def kill_all(pids: list[int]) -> None:
    """SIGKILL to these processes and everything below them."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for each in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()


def partials(given: Given) -> set[str]:
    """Names of the saves that are under way, or were left behind."""
    folder = given.folder / "checkpoints"
    return {name for name in os.listdir(folder) if name.endswith(".partial")} if folder.is_dir() else set()


def differences(one: Given, other: Given) -> list[str]:
    """What differs at the end of two runs: tensors by rank and name, losses, sample ids."""
    found = []
    for rank in range(one.world_size):
        tensors = [load_file(given.last / f"rank_{rank}" / "state.safetensors") for given in (one, other)]
        names = sorted(tensors[0].keys() | tensors[1].keys())
        same = {name for name in names if all(name in held for held in tensors) and tensors[0][name].numpy().tobytes() == tensors[1][name].numpy().tobytes()}
        found += [f"{other.folder.name}: rank {rank}: {name}" for name in names if name not in same]
        ids = [[line["samples"] for line in read_lines(RunDir(given.folder).rank_metrics(rank))] for given in (one, other)]
        found += [f"{other.folder.name}: rank {rank}: sample ids"] if ids[0] != ids[1] else []
    losses = [[json.dumps(line["loss"]) for line in read_lines(RunDir(given.folder).metrics)] for given in (one, other)]
    return found + ([f"{other.folder.name}: losses"] if losses[0] != losses[1] else [])
