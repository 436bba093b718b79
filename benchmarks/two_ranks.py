"""Ranks on this machine, two unless it is said otherwise, one thread each, for a benchmark whose sides take turns on them."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftcore import dist
from ftcore.dist import Ranks

RANKS = 2
RESULT = "result.json"
"""What rank 0 writes into the folder."""


def run_on_ranks(work: Callable[[Ranks, Path, int], None], folder: Path, updates: int, *, world_size: int = RANKS) -> Any:
    """Runs `work` on each rank, and gives what rank 0 wrote. Raises SystemExit when one of them fails."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_rank, args=((rank, world_size, port), work, folder, updates)) for rank in range(world_size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        raise SystemExit(f"the ranks ended with {[process.exitcode for process in ranks]}; there is no result")
    return json.loads((folder / RESULT).read_text())


def _rank(place: tuple[int, int, int], work: Callable[[Ranks, Path, int], None], folder: Path, updates: int) -> None:
    rank, world_size, port = map(str, place)
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world_size, LOCAL_WORLD_SIZE=world_size, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    work(dist.start(), folder, updates)
