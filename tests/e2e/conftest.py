"""Real launches: the `ftlaunch` of this environment, the embedded model, two ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.browser import Browser, started

LIMIT_S = 600
TINY = ("--set", "batch.global_batch_size=4", "--set", "data.eval=null", "--set", "logging.log_samples=true")
"""Options that make the embedded run small and let it write down what it consumed."""


class Cli:
    """Runs ftlaunch in a folder of its own, with a cache shared by the session."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "FTLAUNCH_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
        self.program = str(Path(sys.executable).parent / "ftlaunch")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.program, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([self.program, *arguments], cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found


@pytest.fixture
def cli(tmp_path: Path, cache: Path) -> Cli:
    return Cli(tmp_path, cache)
