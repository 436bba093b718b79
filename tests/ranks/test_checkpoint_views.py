"""Ranks whose hosts show them different files agree on what to resume from."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from ftcore import dist
from ftcore.checkpoint.layout import newest_first
from ftcore.checkpoint.load import find_over_ranks
from ftcore.data.prepared import ModelSource
from tests.ranks.jobs import train_runs
from tests.ranks.pool import RankPool
from tests.ranks.saver_jobs import mount
from tests.ranks.specs import make_spec


@pytest.fixture(scope="module")
def run(pool: RankPool, small: tuple[ModelSource, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints after 2, 4 and 6 updates, written by two ranks."""
    run = tmp_path_factory.mktemp("views") / "run"
    pool.run(train_runs, 2, [(str(run), make_spec(2, updates=6, save_steps=2))], *small, logs=run / "logs")
    return run


def search_with_another_view(rank: int, world_size: int, folder: str, hidden: str) -> tuple[str, tuple[str, ...], int]:
    """As on a network file system that shows rank 1 a part of the folder as empty: a mount in a name space of its own."""
    ranks = dist.start()
    if rank == 1:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x00020000) or not mount("--make-rprivate", "/") or not mount("-t", "tmpfs", "none", str(Path(folder) / "checkpoints" / hidden)):
            return "", (), 0
    search = find_over_ranks(Path(folder) / "checkpoints", ranks)
    return search.found.path.name if search.found else "", search.skipped, len(newest_first(Path(folder) / "checkpoints"))


@pytest.mark.parametrize("hidden", ["update_00000006/rank_0", "."])
def test_ranks_that_see_different_folders_agree(hidden: str, run: Path, pool: RankPool, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root for a mount of its own")
    found = pool.run(search_with_another_view, 2, str(run), hidden, logs=tmp_path / "logs")
    assert found[0][:2] == found[1][:2]
    name, skipped, _ = found[0]
    assert "rank_0/state.safetensors: No such file or directory (seen by rank 1)" in skipped[0]
    assert name == ("update_00000004" if hidden != "." else "") and len(skipped) == (1 if name else 3)
