"""Seconds of an update: what it computes over what the accelerator reaches, what it moves over bandwidths, and what of that is not hidden.

The shares below, HALF_WIDTH, and MOVES in launcher.memory.work, were fitted to 142 published speeds of MPT models on one host of 8 H100 or A100
(llm-foundry, scripts/train/benchmarking/README.md): `python -m benchmarks.time_model` prints the error of each, `--fit` fits again. Nothing was fitted to
speeds on several hosts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftcore.spec.sections import Spec
from launcher.memory.accelerators import Accelerator
from launcher.memory.network import Network, message_seconds
from launcher.memory.traffic import Traffic
from launcher.memory.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What training reaches of an accelerator's rates."""

    matmul: float
    """Of its FLOP/s in matrix products of a layer."""
    attention: float
    """Of its FLOP/s in attention."""
    memory: float
    """Of its memory's bandwidth."""


REACH = {
    "hopper": Reach(matmul=0.681, attention=0.154, memory=0.75),
    "ampere": Reach(matmul=0.824, attention=0.266, memory=0.75),
    "cpu": Reach(matmul=0.80, attention=0.40, memory=0.75),
}
OTHERS = Reach(matmul=0.68, attention=0.155, memory=0.75)
"""Of families without published rows; an assumption."""
HALF_WIDTH = 89.8
"""Width of a model whose matrix products reach half of what wide ones do, on accelerators: a layer of width h reaches h / (h + HALF_WIDTH)."""
HIDDEN = 0.004
"""Of the seconds of collectives, the share that computing hides. The published rows leave next to none: kernels that overlap take
each other's units and bandwidth."""
KERNEL_S = 5e-6
"""Between two launches of kernels from Python; what a micro-step with small kernels waits for."""
HOST_ADAM_BANDWIDTH = 60e9
"""Bytes a second that the optimizer's step on a host moves, all its ranks together; an assumption for a server of two sockets."""
PCIE_REACH = 0.85
"""55 of 64 GB/s of PCIe 5 from pinned memory."""
NVME_BANDWIDTH = 3e9
"""Bytes a second of a host's NVMe where the spec does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTime:
    """Seconds of an average update on the busiest rank."""

    compute_s: float
    """Matrix products and attention."""
    memory_s: float
    """Kernels that only move bytes."""
    launch_s: float
    """Waiting for kernels to be launched, over the two above."""
    communication_s: float
    """Collectives that no computing hides (see HIDDEN)."""
    offload_s: float
    """Transfers to and from the host and NVMe, and the step on the host."""
    mfu: float
    """Model FLOPs (recomputed ones not counted) over what the accelerator could do in that time."""

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.compute_s + self.memory_s + self.launch_s + self.communication_s + self.offload_s


def peak_flops(spec: Spec, accelerator: Accelerator) -> float:
    """FLOP/s of the data sheet in the type that matrix products are done in."""
    by_precision = {"fp32": accelerator.fp32_flops, "fp16": accelerator.fp16_flops}
    return by_precision.get(spec.train.precision, accelerator.bf16_flops)


def update_time(spec: Spec, work: Work, traffic: Traffic, accelerator: Accelerator, network: Network) -> UpdateTime:
    """Seconds of an update. Ranks on the cores of a host share its rates."""
    ranks_a_node = max(1, network.ranks // network.nodes)
    shared = ranks_a_node if accelerator.is_host else 1
    reach = REACH.get(accelerator.family, OTHERS)
    peak, bandwidth = peak_flops(spec, accelerator) / shared, accelerator.memory_bandwidth * reach.memory / shared
    wide = 1.0 if accelerator.is_host else work.width / (work.width + HALF_WIDTH)
    compute = work.matmul_flops / (peak * reach.matmul * wide) + work.attention_flops / (peak * reach.attention)
    memory = work.moved_bytes / bandwidth
    launch = 0.0 if accelerator.is_host else max(0.0, work.kernels * KERNEL_S - compute - memory)
    sent = sum(message_seconds(each, network) for each in traffic.messages)
    communication = sent - min(HIDDEN * sent, compute + memory)
    offload = _offload_seconds(spec, work, traffic, accelerator, ranks_a_node)
    total = compute + memory + launch + communication + offload
    return UpdateTime(
        compute_s=compute,
        memory_s=memory,
        launch_s=launch,
        communication_s=communication,
        offload_s=offload,
        mfu=work.model_flops / (peak * total) if total else 0.0,
    )


def _offload_seconds(spec: Spec, work: Work, traffic: Traffic, accelerator: Accelerator, ranks_a_node: int) -> float:
    moved = traffic.to_host_bytes + traffic.from_host_bytes
    over_bus = 0.0 if accelerator.is_host else moved / (accelerator.host_bandwidth * PCIE_REACH)
    host = accelerator.memory_bandwidth if accelerator.is_host else HOST_ADAM_BANDWIDTH
    nvme = (spec.hardware.nvme_bandwidth or NVME_BANDWIDTH / 1e9) * 1e9
    return over_bus + work.host_moved_bytes * ranks_a_node / host + traffic.nvme_bytes * ranks_a_node / nvme
