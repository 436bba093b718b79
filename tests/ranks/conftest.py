"""Fixtures for tests that start real ranks."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from ftcore.data.prepared import ModelSource
from tests.ranks.pool import RankPool
from tests.ranks.small_model import save_small_llama, write_uneven_samples


@pytest.fixture(scope="session")
def pool() -> RankPool:
    return RankPool()


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSource, str]:
    """The small model on disk and the path of its sample set."""
    folder = tmp_path_factory.mktemp("small")
    write_uneven_samples(folder / "samples.arrow")
    return save_small_llama(folder / "model"), str(folder / "samples.arrow")
