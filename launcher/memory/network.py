"""How long collectives take: the bandwidth of a bus grows with the size of the message, and between hosts their network cards decide."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.accelerators import Accelerator
from launcher.memory.traffic import Message

HOP_S = 2e-6
"""Latency of one step of a ring."""
_MIB = 2**20
_BUS = ((1, 0.089), (4, 0.238), (32, 0.613), (64, 0.771), (256, 0.969), (1024, 1.031))
"""MiB -> bandwidth of the bus over that of the link: 8×H200, all-reduce, 40 to 464 GB/s at 450 GB/s (stas00/ml-engineering, network/benchmarks)."""
FEW_RANKS_SHARE = 0.81
"""The same at most on 4 accelerators or fewer: 363 GB/s."""
PCIE_LINK = 70e9
"""Links below this are PCIe."""
PCIE_SHARE = 0.5
"""Of a PCIe link, what collectives reach; an assumption (no peer access on consumer cards takes it twice through the host)."""
NIC_SHARE = 0.85
"""Of the sum of a host's network cards, what collectives reach; an assumption."""
ASSUMED_NODE_BANDWIDTH = {"hopper": 400e9, "blackwell": 400e9, "ampere": 200e9, "cdna": 400e9}
"""Bytes a second of a host's network where the spec does not say, by family: 8 cards of 400 or 200 Gbit/s. All others: 25 Gbit/s."""
PLAIN_NODE_BANDWIDTH = 3.125e9
GLOO_SHARE = 0.3
"""Of the link that `cpu` stands for, what gloo reaches; an assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What ranks are joined by."""

    ranks: int
    nodes: int
    link_bandwidth: float
    """Between the ranks of a host, bytes a second."""
    node_bandwidth: float
    """Between hosts, bytes a second of one host's network cards together."""
    link_share: float
    """Of link_bandwidth, what large messages reach at most."""
    notes: tuple[str, ...] = ()
    """What was assumed."""


def network_of(resolved: ResolvedSpec, accelerator: Accelerator) -> Network:
    """The network of a run: what spec.hardware says of it, else what such accelerators come with."""
    hardware, nodes = resolved.spec.hardware, len(resolved.hosts)
    link = hardware.intra_node_bandwidth * 1e9 if hardware.intra_node_bandwidth else accelerator.link_bandwidth
    notes = []
    node = ASSUMED_NODE_BANDWIDTH.get(accelerator.family, PLAIN_NODE_BANDWIDTH)
    if hardware.inter_node_bandwidth:
        node = hardware.inter_node_bandwidth * 1e9
    elif nodes > 1:
        notes = [f"hardware.inter_node_bandwidth is not given: {node / 1e9:g} GB/s a host assumed"]
    most = max(host.slots for host in resolved.hosts)
    share = GLOO_SHARE if accelerator.is_host else PCIE_SHARE if link < PCIE_LINK else FEW_RANKS_SHARE if most <= 4 else 1.031
    return Network(ranks=resolved.world_size, nodes=nodes, link_bandwidth=link, node_bandwidth=node, link_share=share, notes=tuple(notes))


def bus_share(size: float) -> float:
    """Bandwidth of the bus over the link's for a message of `size` bytes, between the measured sizes by the logarithm of the size."""
    mib = max(size, 1.0) / _MIB
    if mib <= _BUS[0][0]:
        return max(1e-4, _BUS[0][1] * mib / _BUS[0][0])
    for (low, below), (high, above) in itertools.pairwise(_BUS):
        if mib <= high:
            return below + (above - below) * math.log(mib / low) / math.log(high / low)
    return _BUS[-1][1]


def message_seconds(message: Message, network: Network) -> float:
    """Seconds that a message takes in an update, all its times together: bytes·(n-1)/n over the bandwidth of the bus, and a hop for each other rank."""
    if network.ranks == 1:
        return 0.0
    bus = network.link_bandwidth * min(bus_share(message.bytes), network.link_share)
    ranks = network.ranks
    if message.in_node:
        ranks = max(2, network.ranks // network.nodes)
    elif network.nodes > 1:
        bus = min(bus, network.node_bandwidth * NIC_SHARE)
    return message.times * (message.bytes * (ranks - 1) / ranks / bus + HOP_S * (ranks - 1))
