"""A Slurm of two nodes for the tests, started once."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cluster.hosts import need, what_is_missing
from tests.cluster.slurm import PROGRAMS, Slurm

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def running_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    need(what_is_missing(*PROGRAMS))
    slurm = Slurm.up(tmp_path_factory.mktemp("slurm"))
    yield slurm
    slurm.down()


@pytest.fixture
def slurm(running_slurm: Slurm) -> Iterator[Slurm]:
    """Slurm with no job in it. What a test submitted, killed or left behind is put right after it."""
    yield running_slurm
    running_slurm.restore()
