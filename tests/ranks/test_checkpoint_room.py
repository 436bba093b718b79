"""Disks that are too small or can't be written to are found out before anything is trained."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftcore.data.prepared import ModelSource
from ftcore.spec.sections import OptimizerSection
from tests.ranks.jobs import make_run
from tests.ranks.pool import RankPool
from tests.ranks.saver_jobs import look_for_room, mount
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]
SPEC = make_spec(2)
TRAINED = 18_336
"""Parameters of the small model, its head being tied."""
MIB = 2**20


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """File systems of their own: one for no checkpoint (a small one counts as 1 MiB and more), one for two or three, one that is read-only."""
    folders = {name: tmp_path / name for name in ("tiny", "medium", "readonly")}
    options = {"tiny": "size=1m", "medium": "size=3m", "readonly": "size=8m,ro"}
    mounted = []
    try:
        for name, folder in folders.items():
            folder.mkdir()
            if not mount("-t", "tmpfs", "-o", options[name], "none", str(folder)):
                pytest.skip("this machine lets nobody mount")
            mounted.append(folder)
        yield folders
    finally:
        for folder in mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def test_room_is_looked_for_before_training(disks: dict[str, Path], pool: RankPool, small: Small, tmp_path: Path) -> None:
    make_run(tmp_path / "run", SPEC, 2)
    best = with_section(SPEC, "checkpoint", save_total_limit=1, metric_for_best_model="loss")
    one = with_section(SPEC, "checkpoint", save_total_limit=1)
    places = [(disks["tiny"], one), (disks["medium"], one), (disks["medium"], best), (disks["readonly"] / "checkpoints", one), (tmp_path / "new", one)]
    said = pool.run(look_for_room, 2, str(tmp_path / "run"), [(str(place), spec) for place, spec in places], *small, logs=tmp_path / "logs")
    assert said[0] == said[1]
    needed, tiny, medium, with_best, readonly, new = said[0]
    assert 12 * TRAINED + MIB <= int(needed) <= 12 * TRAINED + MIB + 10_000
    assert tiny.startswith("5 ") and "a checkpoint needs 1.2 MiB, 1.0 MiB are free there" in tiny and "free disk space" in tiny
    assert medium == "" and new == ""
    assert with_best.startswith("2 checkpoints of 1.2 MiB are to be kept and one more is written before the oldest goes: ")
    assert readonly.startswith("5 ") and "rank 0 can't write there: [Errno 30] Read-only file system" in readonly and "rank 1 can't" in readonly
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(("momentum", "fields"), [(0.0, 1), (0.9, 2)])
def test_other_optimizers_hold_less(momentum: float, fields: int, pool: RankPool, small: Small, tmp_path: Path) -> None:
    spec = make_spec(3, optimizer=OptimizerSection(type="sgd", learning_rate=0.1, momentum=momentum))
    make_run(tmp_path / "run", spec, 2)
    said = pool.run(look_for_room, 2, str(tmp_path / "run"), [(str(tmp_path / "new"), spec)], *small, logs=tmp_path / "logs")
    assert 4 * fields * TRAINED + MIB <= int(said[0][0]) <= 4 * fields * TRAINED + MIB + 10_000
