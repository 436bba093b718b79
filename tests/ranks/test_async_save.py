"""Saving while training goes on: whole or not there, never half of an update, tried again when it fails (F01, F04, F07, I05)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftcore.checkpoint.find import find_newest_whole
from ftcore.checkpoint.manifest import read_manifest
from ftcore.data.prepared import ModelSource
from tests.ranks import saver_jobs
from tests.ranks.jobs import read_lines, train_runs
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]
UPDATES = 10
SPEC = make_spec(2, updates=6, save_steps=2)


def digests(checkpoint: Path) -> dict[str, str]:
    """Of all but the random states, which other processes draw anew."""
    return {entry.path: entry.digest for entry in read_manifest(checkpoint).files if not entry.path.endswith("rng.json")}


@pytest.fixture(scope="module")
def trained(pool: RankPool, small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints after 2, 4 and 6 updates, written by two ranks."""
    run = tmp_path_factory.mktemp("saves") / "run"
    pool.run(train_runs, 2, [(str(run), SPEC)], *small, logs=run / "logs")
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """That run with its last checkpoint alone."""
    shutil.copytree(trained, tmp_path / "run")
    for update in (2, 4):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"update_{update:08d}")
    return tmp_path / "run"


def events(run: Path, name: str) -> list[dict[str, object]]:
    return [event for event in read_lines(run / "events.jsonl") if event["event"] == name]


def test_no_save_holds_half_an_update(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """Stages 0-3, a slow disk, a save at every second update while the next ones are trained: byte for byte what waiting saves give."""
    runs = {}
    for stage in range(4):
        spec = make_spec(stage, updates=UPDATES, save_steps=2, method="lora" if stage == 1 else "full")
        runs[stage] = (tmp_path / f"waiting_{stage}", tmp_path / f"lazy_{stage}", spec)
    waiting = [(str(one), with_section(spec, "checkpoint", save_async=False)) for one, _, spec in runs.values()]
    pool.run(train_runs, 2, waiting, *small, logs=tmp_path / "logs_1")
    pool.run(saver_jobs.train_with_sink, 2, [(str(other), spec) for _, other, spec in runs.values()], saver_jobs.slow, *small, logs=tmp_path / "logs_2")
    for one, other, _ in runs.values():
        for update in range(2, UPDATES + 1, 2):
            name = f"checkpoints/update_{update:08d}"
            assert digests(one / name) == digests(other / name), (one.name, update)
        assert find_newest_whole(other / "checkpoints").skipped == ()
        told = [line["update"] for line in events(other, "checkpoint")]
        assert told == [2, 4, 6, 8, 10]


def test_saves_overlap_updates(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """With the slow disk a save is told of later than it was begun, and never before it counts."""
    spec = make_spec(2, updates=UPDATES, save_steps=4)
    pool.run(saver_jobs.train_with_sink, 2, [(str(tmp_path / "run"), spec)], saver_jobs.slow, *small, logs=tmp_path / "logs")
    times = [line["time"] for line in events(tmp_path / "run", "checkpoint")]
    for update, told in zip((4, 8, 10), times, strict=True):
        manifest = tmp_path / "run" / "checkpoints" / f"update_{update:08d}" / "manifest.json"
        assert manifest.stat().st_mtime <= told  # type: ignore[operator]


def test_killed_while_a_thread_writes(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """F01, I05: kill -9 of one rank in the middle of its second state file; the resume ends bit-equal to an unbroken run."""
    spec = make_spec(3, updates=UPDATES, save_steps=3)
    whole = pool.run(train_runs, 2, [(str(tmp_path / "whole"), spec)], *small, logs=tmp_path / "logs_1")
    with pytest.raises(AssertionError, match=r"died without a word|rank 0 failed"):
        pool.run(saver_jobs.train_with_sink, 2, [(str(tmp_path / "run"), spec)], saver_jobs.killing, *small, logs=tmp_path / "logs_2")
    checkpoints = tmp_path / "run" / "checkpoints"
    assert {path.name for path in checkpoints.iterdir()} == {"update_00000003", "update_00000006.partial", "latest"}
    resumed = pool.run(train_runs, 2, [(str(tmp_path / "run"), spec)], *small, logs=tmp_path / "logs_3")
    assert {name: value.tolist() for name, value in resumed[0][0].final.items()} == {name: value.tolist() for name, value in whole[0][0].final.items()}
    assert "update_00000006.partial: the save did not finish" in (tmp_path / "run" / "events.jsonl").read_text()
    assert not list(checkpoints.glob("*.partial"))


def test_a_failed_save_is_told_and_tried_again(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """Rank 1's disk is full in the save due at 4 and once more: the run goes on, and 4 was never said to be saved."""
    spec = make_spec(2, updates=UPDATES, save_steps=4)
    pool.run(saver_jobs.train_with_sink, 2, [(str(tmp_path / "run"), spec)], saver_jobs.full_at_first, *small, logs=tmp_path / "logs")
    failed = events(tmp_path / "run", "save_failed")
    assert [event["rank"] for event in failed] == [1, 1] and failed[0]["update"] == 4
    assert all("No space left on device" in str(event["reason"]) for event in failed)
    saved = [event["update"] for event in events(tmp_path / "run", "checkpoint")]
    assert saved[-1] == 10 and 4 not in saved and not set(saved) & {event["update"] for event in failed}
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"latest", *(f"update_{update:08d}" for update in saved)}


def test_retries_are_spaced(run: Path, pool: RankPool, small: Small, tmp_path: Path) -> None:
    for begun in pool.run(saver_jobs.retries, 2, str(run), SPEC, *small, logs=tmp_path / "logs"):
        assert begun == [8, 9, 11, 15, 23, 39]
    search = find_newest_whole(run / "checkpoints")
    assert search.found is not None and search.found.manifest.update == 6


def test_nothing_in_flight_costs_no_collective(run: Path, pool: RankPool, small: Small, tmp_path: Path) -> None:
    pool.run(saver_jobs.poll_alone, 2, str(run), SPEC, *small, logs=tmp_path / "logs")


def test_the_best_one_stays(run: Path, pool: RankPool, small: Small, tmp_path: Path) -> None:
    """F04: limit 1; the lowest metric is kept beside the newest, ties and unmeasured saves change nothing, and a new process knows it from the manifests."""
    spec = with_section(SPEC, "checkpoint", save_total_limit=1, metric_for_best_model="loss")
    metrics = [(7, None), (8, 2.0), (9, 1.5), (10, 1.5), (11, float("nan"))]
    seen = pool.run(saver_jobs.save_with_metrics, 2, str(run), spec, metrics, *small, logs=tmp_path / "1")
    assert seen[0] == [
        "latest update_00000007",
        "best latest update_00000008",
        "best latest update_00000009",
        "best latest update_00000009 update_00000010",
        "best latest update_00000009 update_00000011",
    ]
    assert (run / "checkpoints" / "best").read_text() == "update_00000009\n"
    (run / "checkpoints" / "best").unlink()
    pool.run(saver_jobs.save_with_metrics, 2, str(run), spec, [(12, 3.0)], *small, logs=tmp_path / "2")
    assert (run / "checkpoints" / "best").read_text() == "update_00000009\n"
    seen = pool.run(saver_jobs.save_with_metrics, 2, str(run), spec, [(13, 0.5)], *small, logs=tmp_path / "3")
    assert seen[0] == ["best latest update_00000013"]
    assert read_manifest(run / "checkpoints" / "update_00000013").metric == 0.5


@pytest.fixture
def small_disk(run: Path) -> Iterator[Path]:
    """`run` with its checkpoints on a file system of their own that holds one and a half."""
    held = run / "checkpoints"
    held.rename(run / "held")
    held.mkdir()
    size = sum(path.stat().st_size for path in (run / "held").rglob("*") if path.is_file())
    if not saver_jobs.mount("-t", "tmpfs", "-o", f"size={int(size * 1.5)}", "none", str(held)):
        pytest.skip("this machine lets nobody mount")
    try:
        shutil.copytree(run / "held", held, dirs_exist_ok=True)
        yield run
    finally:
        subprocess.run(["umount", "-l", str(held)], check=True)


def test_a_full_disk_at_the_end(small_disk: Path, pool: RankPool, small: Small, tmp_path: Path) -> None:
    """Tried three times, then status 5 with the reason; what was saved earlier is still whole, and the disk is as empty as before."""
    for outcomes, error in pool.run(saver_jobs.save_on_a_small_disk, 2, str(small_disk), SPEC, *small, logs=tmp_path / "logs"):
        assert [outcome.path for outcome in outcomes] == [None] * 3
        assert error.startswith("5 ") and "could not save: [Errno 28] No space left on device" in error and "free disk space" in error
    search = find_newest_whole(small_disk / "checkpoints")
    assert search.found is not None and search.found.manifest.update == 6 and not search.skipped
