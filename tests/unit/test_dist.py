"""How long collectives wait, and where statistics are summed."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as torch_dist

from ftcore.dist import TIMEOUT, Ranks, collective_timeout, sum_over_ranks
from tests.ranks.pool import kept_port

ROOT = Path(__file__).resolve().parents[2]
GROUPS = """
import torch.distributed as torch_dist
from ftcore import dist
dist.start(7200.0)
for group in (torch_dist.distributed_c10d._get_default_group(), torch_dist.new_group([0])):
    [(_, backend)] = {(type(each), each) for each in [group._get_backend(__import__("torch").device("cpu"))]}
    print(backend.options._timeout.total_seconds())
dist.stop()
"""


def test_a_collective_waits_longer_than_the_watchdog() -> None:
    """I03: the launcher's watchdog comes first, with the stacks of all ranks; without one, and with a quick one, it is torch's half hour."""
    assert collective_timeout(0.0) == collective_timeout(60.0) == TIMEOUT
    assert collective_timeout(1800.0) > timedelta(seconds=1800) and collective_timeout(7200.0) > timedelta(seconds=7200)


def test_groups_made_later_wait_as_long() -> None:
    """DeepSpeed makes some of its own, for which torch has 10 minutes with NCCL."""
    with kept_port() as port:
        names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment = {**os.environ, **names, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run([sys.executable, "-c", GROUPS], env=environment, capture_output=True, text=True, check=False, timeout=180)
    assert done.stdout.split() == ["7500.0", "7500.0"], done.stderr


def test_sums_are_made_where_the_rank_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """I08: a sum over CPU tensors would wait for ever with NCCL. No device of this kind is needed to see where the numbers are put."""
    seen: list[str] = []

    def note(tensor: torch.Tensor) -> None:
        seen.append(tensor.device.type)
        raise InterruptedError

    monkeypatch.setattr(torch_dist, "all_reduce", note)
    for device in ("meta", "cpu"):
        with pytest.raises(InterruptedError):
            sum_over_ranks([1.0, 2.0], Ranks(0, 2, 0, torch.device(device)))
    assert seen == ["meta", "cpu"]
