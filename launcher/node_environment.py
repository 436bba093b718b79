"""The environment of a host's ranks: torch's and DeepSpeed's variables, threads, devices, the place to meet. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ftcore.spec.run_dir import RunDir
from launcher.device_mask import device_mask, visible_entries
from launcher.interfaces import explicit_interface, interface_environment, interface_towards
from launcher.topology import local_accelerators

KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_MMAP_THRESHOLD_": str(1 << 34), "MALLOC_TOP_PAD_": str(1 << 28)}
"""For glibc: each micro-step frees its activations and takes as much again; given back to the kernel in between, they fault in page by page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What one host runs."""

    run_dir: RunDir
    host: str
    """Name in reports."""
    node_rank: int
    nodes: int
    local_ranks: int
    first_rank: int
    """Global rank of local rank 0."""
    world_size: int
    devices: tuple[int, ...]
    """Accelerators to use, one a local rank; empty: all that are visible."""
    interface: str = ""
    """The network interface of its ranks; empty: the one that leads to rank 0."""
    command: tuple[str, ...]
    """argv of a rank."""
    import_once: bool
    """The command is `PYTHON -m MODULE RUN` with a `main(RunDir)`: a process that has imported MODULE may be forked for each rank."""

    @property
    def forks(self) -> bool:
        """Whether ranks are forked. Not next to accelerators: libraries ask them for their abilities when imported, and no fork can use CUDA after that."""
        return self.import_once and self.local_ranks > 1 and local_accelerators() == 0


def host_environment(base: Mapping[str, str], node: Node, cores: int) -> dict[str, str]:
    """What the ranks of a host share: `base` with torch's and DeepSpeed's variables, and threads that share `cores`.

    Raises ClusterError when a slot of the host lies outside its CUDA_VISIBLE_DEVICES.
    """
    environment = dict(base)
    own = {
        "WORLD_SIZE": node.world_size,
        "LOCAL_WORLD_SIZE": node.local_ranks,
        "LOCAL_SIZE": node.local_ranks,
        "NODE_RANK": node.node_rank,
        "CROSS_RANK": node.node_rank,
        "CROSS_SIZE": node.nodes,
    }
    environment.update({name: str(value) for name, value in own.items()})
    # A rank that hangs is ended by SIGABRT, and leaves the stacks of its threads in its log.
    environment.update({"PYTHONFAULTHANDLER": "1"})
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // node.local_ranks)))
    for name, value in KEEP_FREED_MEMORY.items():
        environment.setdefault(name, value)
    visible = base.get("CUDA_VISIBLE_DEVICES")
    # An empty mask says that the host's accelerators are not to be used: slots are CPU ranks then.
    mask = device_mask(visible, node.devices) if visible is None or visible_entries(visible) else None
    if mask is not None:
        environment["CUDA_VISIBLE_DEVICES"] = mask
    return environment


def meeting_environment(environment: Mapping[str, str], node: Node, address: str, port: int) -> dict[str, str]:
    """`environment` with the place where the ranks meet, and the interface that gloo and NCCL use for it where nothing else is said."""
    made = {**environment, "MASTER_ADDR": address, "MASTER_PORT": str(port)}
    name = explicit_interface(node.interface, "", environment) or interface_towards(address, port)
    return {**made, **interface_environment(name, made)} if name else made


def rank_environment(shared: Mapping[str, str], node: Node, local_rank: int) -> dict[str, str]:
    """The environment of one rank: what it shares with the host's others, and its number."""
    return {**shared, "RANK": str(node.first_rank + local_rank), "LOCAL_RANK": str(local_rank)}


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
