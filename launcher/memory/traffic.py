"""What one update sends between ranks, and between accelerator and host: bytes and messages by ZeRO stage, coalescing and offload. Counts, no times."""

from __future__ import annotations

from dataclasses import dataclass

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import Spec
from launcher.memory.shape import ModelShape
from launcher.memory.work import QUANTISED_BYTES, element_bytes, matmul_parameters

BUCKET_ELEMENTS = 50_000_000
"""reduce_bucket_size and allgather_bucket_size of the presets in ds_configs/."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A collective that repeats during an update."""

    kind: str
    """gather (all-gather of weights), reduce (reduce-scatter), or all-reduce (half of one: it goes round twice)."""
    bytes: float
    """Of the whole tensor in one of them."""
    times: float
    """How often in an update."""
    in_node: bool = False
    """Whether it stays inside a host whatever the number of hosts (hpZ)."""

    @property
    def total(self) -> float:
        """Bytes an update."""
        return self.bytes * self.times


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What moves in an update, for one rank."""

    messages: tuple[Message, ...]
    """Collectives over all ranks; none on one rank."""
    to_host_bytes: float
    """Gradients on their way to an optimizer on the host, and weights nobody needs."""
    from_host_bytes: float
    """Weights on their way back."""
    nvme_bytes: float
    """Weights read from NVMe, by one rank."""

    @property
    def collective_bytes(self) -> float:
        """Bytes an update over all collectives."""
        return sum(message.total for message in self.messages)


def weight_bytes(spec: Spec, shape: ModelShape) -> float:
    """Bytes of the model's weights as a rank computes with them: the linear layers of a quantised base in 4 or 8 bits."""
    element = element_bytes(spec)
    if spec.method.type != "qlora":
        return float(shape.parameters * element)
    linears = matmul_parameters(shape) if not shape.experts else shape.count("attention", "mlp", "expert")
    return linears * QUANTISED_BYTES * spec.method.bits / 4 + (shape.parameters - linears) * element


def traffic_of(resolved: ResolvedSpec, shape: ModelShape, trained: int, micro_steps: int) -> Traffic:
    """The traffic of an update in which `trained` parameters get gradients.

    Before the factor (n-1)/n: stage 0 2·bT + 2·bT (an all-reduce counts twice), 1: bT + bT, 2: bT a micro-step + bT (coalesced bT + bT),
    3: 2·bP + bT a micro-step (coalesced 2·bP a micro-step + bT), b bytes a number (DeepSpeed zero/stage_1_and_2.py, stage3.py).
    """
    spec, element = resolved.spec, element_bytes(resolved.spec)
    gradients, weights = float(trained * element), weight_bytes(spec, shape)
    reductions = 1 if spec.zero.stage < 2 or spec.zero.coalesce_grad_reduction else micro_steps
    messages: list[Message] = []
    if resolved.world_size > 1:
        messages = _stage_3(spec, shape, weights, micro_steps) if spec.zero.stage == 3 else _flat(spec, gradients)
        reduced = gradients * (2 if spec.zero.stage == 0 else 1) * (0.25 if spec.zero.zero_quantized_gradients else 1.0)
        messages += _in_messages("reduce" if spec.zero.stage else "all-reduce", reduced, reductions, _bucket(spec.zero.reduce_bucket_size, element))
    share = 1.0 if spec.zero.stage == 0 else float(resolved.world_size)
    offloads, param = spec.zero.offload_optimizer != "none", spec.zero.offload_param
    held = weights / share
    return Traffic(
        messages=tuple(messages),
        to_host_bytes=gradients * reductions / share if offloads else 0.0,
        from_host_bytes=(gradients / share if offloads else 0.0) + (2 * held * micro_steps if param != "none" else 0.0),
        nvme_bytes=2 * held * micro_steps if param == "nvme" else 0.0,
    )


def _flat(spec: Spec, gradients: float) -> list[Message]:
    """Stages 0 to 2: after the step the new weights are gathered (in stage 0 the second half of the all-reduce)."""
    if spec.zero.stage == 0:
        return []
    return _in_messages("gather", gradients, 1, _bucket(spec.zero.allgather_bucket_size, element_bytes(spec)))


def _stage_3(spec: Spec, shape: ModelShape, weights: float, micro_steps: int) -> list[Message]:
    """Each layer's weights are gathered before it is computed, forward and backward."""
    layers = max(1, shape.layers)
    sent = weights * (0.5 if spec.zero.zero_quantized_weights else 1.0)
    in_node = (spec.zero.zero_hpz_partition_size or 1) > 1
    forward = Message(kind="gather", bytes=sent / layers, times=micro_steps * layers)
    backward = Message(kind="gather", bytes=sent / layers, times=micro_steps * layers, in_node=in_node)
    return [forward, backward]


def _bucket(elements: int | None, element: int) -> float:
    return float((elements or BUCKET_ELEMENTS) * element)


def _in_messages(kind: str, size: float, times: float, bucket: float) -> list[Message]:
    """`size` bytes, `times` an update, in pieces of at most `bucket`."""
    if size <= 0:
        return []
    pieces = max(1, -(-int(size) // max(1, int(bucket))))
    return [Message(kind=kind, bytes=size / pieces, times=times * pieces)]
