"""How long collectives take: a ring through all ranks is as slow as the slower of its two stages, links inside a host and network cards between hosts.

A ring of n ranks on N hosts sends bytes·(n-1)/n over every rank's link and bytes·(N-1)/N over the cards of each host, both at once, and takes n-N hops
inside hosts and N-1 between them. Hops and the two protocols are those NCCL chooses by (NVIDIA/nccl, src/graph/tuning.cc).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.accelerators import Accelerator
from launcher.memory.traffic import Message

_MIB = 2**20
_BUS = ((1, 0.089), (4, 0.238), (32, 0.613), (64, 0.771), (256, 0.969), (1024, 1.031))
"""MiB -> bandwidth of the bus over that of the link: 8×H200, all-reduce, 40 to 464 GB/s at 450 GB/s (stas00/ml-engineering, network/benchmarks)."""
RING_SHARE = {"hopper": 0.81, "ampere": 0.783}
"""Of an NVLink, what a ring reaches at most, by family: 363 of 450 GB/s on 4 H200 (the same source), and 235 of 300 (NCCL's own bound on A100)."""
OTHER_RING_SHARE = 0.8
SWITCHED_SHARE = 1.031
"""The same for an all-reduce on more than 4 accelerators of a host, whose switches add up: 464 of 450 GB/s."""
PCIE_LINK = 70e9
"""Links below this are PCIe."""
PCIE_SHARE = 0.5
"""Of a PCIe link, what collectives reach; an assumption (no peer access on consumer cards takes it twice through the host)."""
NIC_SHARE = 0.85
"""Of the sum of a host's network cards, what collectives reach; an assumption, on which the published rows don't depend: 0.7 and 0.95 do as well."""
ASSUMED_NODE_BANDWIDTH = {"hopper": 400e9, "blackwell": 400e9, "ampere": 200e9, "cdna": 400e9}
"""Bytes a second of a host's network where the spec does not say, by family: 8 cards of 400 or 200 Gbit/s. All others: 25 Gbit/s."""
PLAIN_NODE_BANDWIDTH = 3.125e9
GLOO_HOP_S = 4e-4
"""Of a message between ranks on CPUs, for each rank beyond two."""
_GLOO_BUS = {
    "all-reduce": ((0.25, 0.64), (1, 1.31), (16, 1.3), (256, 1.09)),
    "gather": ((0.25, 0.35), (1, 0.85), (16, 0.72), (64, 0.13), (256, 0.11)),
    "reduce": ((0.25, 0.17), (1, 0.46), (16, 0.43), (64, 0.21), (256, 0.1)),
}
"""MiB -> GB/s between ranks on CPUs of one host (`python -m benchmarks.gloo_bus` on two cores): large gathers and reductions are copied to new memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A way in which NCCL moves a message: the faster one is taken."""

    inside_s: float
    """Of a hop to the next rank of a host."""
    between_s: float
    """Of a hop to the next host."""
    share: float
    """Of the bandwidth."""


PROTOCOLS = (Protocol(inside_s=3.4e-6, between_s=9.6e-6, share=1.0), Protocol(inside_s=1.9e-6, between_s=4.0e-6, share=0.92))
"""Simple, LL128."""
TREE = Protocol(inside_s=1.2e-6, between_s=8.5e-6, share=0.9 * 0.92)
"""A tree of hosts (LL128), which an all-reduce may take in place of a ring: fewer hops, less bandwidth."""


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
    reduce_share: float
    """The same for an all-reduce."""
    is_gloo: bool = False
    """Ranks on CPUs."""
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
    share = _link_share(accelerator, link)
    is_switched = accelerator.family == "hopper" and link >= PCIE_LINK and max(host.slots for host in resolved.hosts) > 4
    return Network(
        ranks=resolved.world_size,
        nodes=nodes,
        link_bandwidth=link,
        node_bandwidth=node,
        link_share=share,
        reduce_share=SWITCHED_SHARE if is_switched else share,
        is_gloo=accelerator.is_host,
        notes=tuple(notes),
    )


def _link_share(accelerator: Accelerator, link: float) -> float:
    return PCIE_SHARE if link < PCIE_LINK else RING_SHARE.get(accelerator.family, OTHER_RING_SHARE)


def bus_share(size: float) -> float:
    """Bandwidth of the bus over the link's for a message of `size` bytes, between the measured sizes by the logarithm of the size."""
    return _between(_BUS, size)


def _between(curve: tuple[tuple[float, float], ...], size: float) -> float:
    mib = max(size, 1.0) / _MIB
    if mib <= curve[0][0]:
        return max(1e-4, curve[0][1] * mib / curve[0][0])
    for (low, below), (high, above) in itertools.pairwise(curve):
        if mib <= high:
            return below + (above - below) * math.log(mib / low) / math.log(high / low)
    return curve[-1][1]


def message_seconds(message: Message, network: Network) -> float:
    """Seconds that a message takes in an update, all its times together."""
    nodes = 1 if message.in_node else network.nodes
    ranks = max(2, -(-network.ranks // network.nodes)) if message.in_node else network.ranks
    if network.ranks == 1:
        return 0.0
    if network.is_gloo:
        return message.times * _gloo_seconds(message, network, (ranks, nodes))
    ways = [_seconds(message, network, (ranks, nodes), each) for each in PROTOCOLS]
    if message.kind == "all-reduce":
        ways.append(_seconds(message, network, (ranks, nodes), TREE))
    return message.times * min(ways)


def _seconds(message: Message, network: Network, size: tuple[int, int], way: Protocol) -> float:
    """One message between (ranks, hosts). The hops of one full host are in the measured bandwidth of its bus already."""
    ranks, nodes = size
    most = network.reduce_share if message.kind == "all-reduce" else network.link_share
    inside = message.bytes * (ranks - 1) / ranks / (network.link_bandwidth * min(bus_share(message.bytes), most))
    between = message.bytes * (nodes - 1) / nodes / (network.node_bandwidth * NIC_SHARE)
    ring = max(0, ranks - nodes - (-(-ranks // nodes) - 1)) * way.inside_s + (nodes - 1) * way.between_s
    hops = math.log2(nodes) * way.between_s if way is TREE else ring
    return max(inside, between) / way.share + hops


def _gloo_seconds(message: Message, network: Network, size: tuple[int, int]) -> float:
    """One message between (ranks, hosts) of CPUs."""
    ranks, nodes = size
    inside = message.bytes * (ranks - 1) / ranks / min(network.link_bandwidth, 1e9 * _between(_GLOO_BUS[message.kind], message.bytes))
    between = message.bytes * (nodes - 1) / nodes / (network.node_bandwidth * NIC_SHARE)
    return max(inside, between) + GLOO_HOP_S * (ranks - 2)
