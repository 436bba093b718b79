"""Rank jobs around `Saver`: slow, failing and killed writes, by what takes the bytes."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from ftcore import dist
from ftcore.checkpoint import snapshot
from ftcore.checkpoint.load import find_over_ranks, load_checkpoint
from ftcore.checkpoint.rank_files import Sink
from ftcore.checkpoint.room import checkpoint_bytes, require_room
from ftcore.checkpoint.saver import SaveOutcome, Saver
from ftcore.data.prepared import ModelSource
from ftcore.dist import Ranks
from ftcore.run import build_engine, restore
from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.train.loop import Trainer
from tests.ranks.jobs import make_job, make_run

Metrics = list[tuple[int, float | None]]
"""Updates to save at, with the metric of each."""
CHUNK = 4096
"""Bytes at once in these tests: some sixty chunks a save of the small model."""


def slow(rank: int) -> Sink:
    """A disk on which a save takes longer than some updates."""

    def write(handle: int, data: memoryview) -> int:
        time.sleep(0.002 + 0.001 * rank)
        return os.write(handle, data)

    return write


def killing(rank: int) -> Sink:
    """Rank 1 is killed in the middle of the state file of update 6."""

    def write(handle: int, data: memoryview) -> int:
        if rank == 1 and "update_00000006" in os.readlink(f"/proc/self/fd/{handle}") and os.fstat(handle).st_size > 20_000:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.write(handle, data)

    return write


def full_at_first(rank: int) -> Sink:
    """Rank 1's disk is full twice, in the middle of a file."""
    failures = 0

    def write(handle: int, data: memoryview) -> int:
        nonlocal failures
        if rank == 1 and failures < 2 and os.fstat(handle).st_size > 10_000:
            failures += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(handle, data[: max(1, len(data) // 2)])

    return write


def train_with_sink(rank: int, world_size: int, runs: list[tuple[str, Spec]], make_sink: Callable[[int], Sink], source: ModelSource, samples: str) -> None:
    """Trains each run, from its newest checkpoint or the start, with state files written through the sink, in small chunks."""
    ranks = dist.start()
    snapshot.CHUNK_BYTES = CHUNK
    for folder, spec in runs:
        run_dir = RunDir(Path(folder))
        if ranks.is_first:
            make_run(run_dir.path, spec, world_size)
        dist.barrier()
        job = make_job(run_dir, spec, source, samples)
        engine = build_engine(job, ranks)
        trainer = Trainer(engine, job, restore(engine, job))
        trainer._saver = Saver(engine, run_dir.checkpoints, spec=spec, base=source, sink=make_sink(rank))
        trainer.run()
        engine.deepspeed.destroy()
    dist.barrier()
    dist.stop()


def saver_at(ranks: Ranks, folder: str, spec: Spec, source: ModelSource, samples: str) -> tuple[Saver, Callable[[int], object]]:
    """A saver of an engine that the newest checkpoint was loaded into, and what makes a cursor after so many updates of it."""
    run_dir = RunDir(Path(folder))
    engine = build_engine(make_job(run_dir, spec, source, samples), ranks)
    found = find_over_ranks(run_dir.checkpoints, ranks).found
    assert found is not None
    cursor = load_checkpoint(engine, found, spec=spec, base=source)
    return Saver(engine, run_dir.checkpoints, spec=spec, base=source), lambda update: dataclasses.replace(cursor, next_update=update)


def save_with_metrics(rank: int, world_size: int, folder: str, spec: Spec, metrics: Metrics, source: ModelSource, samples: str) -> list[str]:
    """Saves at these updates with these metrics; after each, the names in the folder, joined."""
    saver, at = saver_at(dist.start(), folder, spec, source, samples)
    seen = []
    for update, metric in metrics:
        assert saver.begin(at(update), metric) is None
        saver.before_step()
        outcome = saver.poll(wait=True)
        assert outcome is not None and outcome.path is not None and saver.saved_update == update
        dist.barrier()
        names = sorted(path.name for path in (Path(folder) / "checkpoints").iterdir())
        seen.append(" ".join(names))
        dist.barrier()
    return seen


def save_on_a_small_disk(rank: int, world_size: int, folder: str, spec: Spec, source: ModelSource, samples: str) -> tuple[list[SaveOutcome], str]:
    """The last save of a run whose checkpoints lie on a disk that holds no second one: its outcomes and its error."""
    saver, at = saver_at(dist.start(), folder, spec, source, samples)
    outcomes: list[SaveOutcome] = []
    try:
        outcomes.extend(saver.finish(at(8), pauses_s=(0.1, 0.1)))
    except CheckpointError as error:
        return outcomes, f"{error.exit_status} {error}"
    return outcomes, ""


def retries(rank: int, world_size: int, folder: str, spec: Spec, source: ModelSource, samples: str) -> list[int]:
    """Updates of 8..40 at which a save that never works is begun, when one is due at 8 only."""
    saver, at = saver_at(dist.start(), folder, spec, source, samples)
    in_the_way = Path(folder) / "checkpoints"
    begun = []
    for update in range(8, 41):
        if update == 8 or saver.wants_retry(update):
            if rank == 0:
                (in_the_way / f"update_{update:08d}.partial").write_text("in the way")
            begun.append(update)
            saver.begin(at(update))
            outcome = saver.poll(wait=True)
            assert outcome is not None and outcome.path is None and outcome.rank == 0
    return begun


def poll_alone(rank: int, world_size: int, folder: str, spec: Spec, source: ModelSource, samples: str) -> None:
    """Rank 0 polls and steps without the other one, which would block it if that took a collective."""
    saver, _ = saver_at(dist.start(), folder, spec, source, samples)
    for _ in range(5 if rank == 0 else 0):
        saver.before_step()
        assert saver.poll() is None and saver.poll(wait=True) is None and not saver.wants_retry(10**6)
    dist.barrier()


def mount(*arguments: str) -> bool:
    """Runs mount; whether this machine allows it."""
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


def look_for_room(rank: int, world_size: int, folder: str, places: list[tuple[str, Spec]], source: ModelSource, samples: str) -> list[str]:
    """What `require_room` says of each folder: its note, or status and text of its error; the first answer is the bytes of a checkpoint."""
    ranks = dist.start()
    engine = build_engine(make_job(RunDir(Path(folder)), places[0][1], source, samples), ranks)
    said = [str(checkpoint_bytes(engine, places[0][1]))]
    for place, spec in places:
        try:
            said.append(require_room(engine, Path(place), spec))
        except CheckpointError as error:
            said.append(f"{error.exit_status} {error}")
    return said
