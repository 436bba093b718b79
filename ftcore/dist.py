"""The only door to torch.distributed: start and end of the process group, and the few collectives of our own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as torch_dist

TIMEOUT = timedelta(minutes=30)
"""How long a collective waits for a rank, at least; a rank that dies is noticed by the supervisor in seconds."""
BEHIND_WATCHDOG = timedelta(minutes=5)
"""So much longer than the launcher's watchdog, which has the stacks of all ranks to show."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where this process stands among the others."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def start(stall_timeout: float = 0.0) -> Ranks:
    """Joins the process group that the environment describes (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).

    NCCL with one GPU a rank where there are accelerators, gloo on the CPU else. `stall_timeout` are the seconds of the launcher's
    watchdog, 0 without one.
    """
    timeout = collective_timeout(stall_timeout)
    # For groups made later too, DeepSpeed's among them, which ask for no timeout of their own.
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        setattr(torch_dist.distributed_c10d, name, timeout)
    rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if torch.cuda.is_available():
        # A task that was given one GPU only sees it as device 0, whatever its local rank.
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        torch_dist.init_process_group("nccl", rank=rank, world_size=world_size, timeout=timeout, device_id=device)
    else:
        device = torch.device("cpu")
        torch_dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=timeout)
    return Ranks(rank, world_size, local_rank, device)


def collective_timeout(stall_timeout: float) -> timedelta:
    """How long a collective waits for a rank, where the launcher's watchdog waits `stall_timeout` seconds (0: there is none)."""
    return max(TIMEOUT, timedelta(seconds=stall_timeout) + BEHIND_WATCHDOG)


def shared_store(name: str) -> Any:
    """The key-value store that the process group was made with, under names of its own and on a connection of its own: for one other thread."""
    return torch_dist.PrefixStore(name, torch_dist.distributed_c10d._get_default_store().clone())


def sum_over_ranks(values: Sequence[float], ranks: Ranks) -> list[float]:
    """Element-wise sums over all ranks, in float64. Every rank must call it with as many values."""
    total = torch.tensor(values, dtype=torch.float64, device=ranks.device)
    torch_dist.all_reduce(total)
    return [float(value) for value in total.tolist()]


def sum_in_place(tensor: torch.Tensor) -> None:
    """Replaces a tensor, which has the same shape on every rank, by its sum over all of them."""
    torch_dist.all_reduce(tensor)


def gather_objects(value: Any, ranks: Ranks) -> list[Any]:
    """`value` of every rank, in rank order, on every rank."""
    gathered: list[Any] = [None] * ranks.world_size
    torch_dist.all_gather_object(gathered, value)
    return gathered


def gather_rows(values: npt.NDArray[np.float64], ranks: Ranks) -> npt.NDArray[np.float64]:
    """`values` of every rank, which are as many on each, as rows in rank order: float64 [W, n], by one collective."""
    row = torch.from_numpy(np.ascontiguousarray(values)).to(ranks.device)
    rows = torch.empty((ranks.world_size, len(values)), dtype=torch.float64, device=ranks.device)
    torch_dist.all_gather(list(rows.unbind()), row)
    gathered: npt.NDArray[np.float64] = rows.cpu().numpy()
    return gathered


_aside: set[Any] = set()
"""Groups of threads beside the one that trains."""


def is_aside(group: Any) -> bool:
    """Whether a group belongs to a `HostGroup`: waiting in it is not the training's."""
    return group is not None and group in _aside


class HostGroup:
    """A process group of its own on the hosts' memory, for a thread beside the one that trains: neither waits for the other, nor for a device.

    Every rank must make it at the same point.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._group = torch_dist.new_group(backend="gloo")
        _aside.add(self._group)

    def sum(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sum of an array, which has the same shape on every rank, over all of them."""
        total = torch.from_numpy(np.ascontiguousarray(values))
        torch_dist.all_reduce(total, group=self._group)
        summed: npt.NDArray[np.int64] = total.numpy()
        return summed

    def gather(self, value: Any) -> list[Any]:
        """`value` of every rank, in rank order, on every rank."""
        gathered: list[Any] = [None] * self._ranks.world_size
        torch_dist.all_gather_object(gathered, value, group=self._group)
        return gathered


def barrier() -> None:
    """Returns once every rank has called it."""
    torch_dist.barrier()


def stop() -> None:
    """Leaves the process group; a no-op when there is none."""
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()
