"""Hosts for the tests: two that see each other, started once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.hosts import Cluster, need, what_is_missing
from tests.multinode.launches import Launcher

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def cluster_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(what_is_missing())
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="session")
def running_cluster(cluster_folder: Path) -> Iterator[Cluster]:
    cluster = Cluster.up(cluster_folder / "two")
    yield cluster
    cluster.down()


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    """Two hosts with nothing on them. What a test killed, cut or left behind is put right after it."""
    yield running_cluster
    running_cluster.restore()


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def launcher(cluster: Cluster, tmp_path: Path, cache: Path) -> Iterator[Launcher]:
    launcher = Launcher(cluster, tmp_path, cache)
    yield launcher
    launcher.close()
