"""What one update has a rank compute and move: floating point operations, bytes of its own memory, kernels. Counts, no times.

M: parameters in matrix products a token passes through, A: attention's operations a token, f: share of supervised tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import Spec
from launcher.memory.lengths import DataLengths
from launcher.memory.shape import LINEAR_KINDS, ModelShape

KERNELS_A_LAYER = 55
"""Kernels of a decoder layer, forward and backward, as transformers runs it without compilation; a third of them forward."""
OPTIMIZER_BYTES = 30
"""Moved for each trained parameter in an AdamW step: gradient, master, two moments read, three of them and the 16-bit copy written."""
QUANTISED_BYTES = 0.516
"""Of a parameter in 4 bits with scales quantised as well (64 numbers a block, 256 blocks a group)."""

MOVES = 5.764
"""How often the bytes that a layer keeps are read or written by the kernels around the matrix products: fitted (launcher.memory.roofline)."""
MOVES_AGAIN = 0.005
"""The same for a layer's second forward pass."""
LOGIT_BYTES = 24
"""Moved for each logit: written, read in float32 by the loss, its gradient written and read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """How an update is cut for a rank."""

    tokens: float
    """Of an update, over all ranks."""
    rank_tokens: float
    """Of an update, on one rank."""
    micro_steps: int
    samples: float
    """Of an update, over all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One update on one rank."""

    matmul_flops: float
    """Matrix products but attention's, recomputed ones included."""
    attention_flops: float
    model_flops: float
    """Of both, without what is recomputed: what MFU counts."""
    moved_bytes: float
    """Between kernels, in the accelerator's memory: activations, dequantised weights, the optimizer's state."""
    host_moved_bytes: float
    """In the host's memory, by the optimizer's step there."""
    kernels: float
    micro_step_tokens: float
    """Tokens of a micro-step."""
    element_bytes: int
    """Of a number in the weights that are computed with: 2 or 4."""
    width: int
    """Of the model: matrix products of narrow ones reach less."""


def element_bytes(spec: Spec) -> int:
    """Bytes of a number in the weights and gradients: 4 in fp32 and bf16_autocast, else 2."""
    return 2 if spec.train.precision in ("bf16", "fp16") else 4


def cut_update(spec: Spec, world_size: int, lengths: DataLengths) -> Portion:
    """How the samples of an average update are dealt: the fewest micro-steps that hold them (compare ftcore.batch.deal)."""
    budget = max(spec.batch.micro_batch_tokens, 1)
    size = spec.batch.global_batch_size
    wanted = float(size) if size is not None else max(1.0, (spec.batch.tokens_per_update or 1) / lengths.mean)
    samples = min(wanted, float(max(1, lengths.samples)))
    tokens = samples * lengths.mean
    bins = max(tokens / budget, samples * lengths.bins_over(budget))
    micro_steps = max(1, math.ceil(bins / world_size - 1e-6))
    return Portion(tokens=tokens, rank_tokens=tokens / world_size, micro_steps=micro_steps, samples=samples)


def matmul_parameters(shape: ModelShape) -> int:
    """Parameters of the decoder layers' matrices that one token passes through: of experts those it is sent to."""
    total = 0
    for tensor in shape.tensors:
        if tensor.kind in LINEAR_KINDS:
            total += tensor.total * shape.experts_per_token // max(1, shape.experts) if tensor.kind == "expert" else tensor.total
    return total


def recomputed_share(rule: str, layers: int) -> float:
    """Share of the decoder layers that `rule` (train.gradient_checkpointing) computes twice."""
    if rule in ("none", "full"):
        return float(rule == "full")
    if rule == "sqrt":
        return 1 - round(math.sqrt(layers)) / layers
    return math.ceil(layers / int(rule.removeprefix("every:"))) / layers


def layer_activation_bytes(shape: ModelShape, element: int) -> float:
    """Bytes a token that one decoder layer keeps for its backward pass (transformers' Llama with SDPA; matched with saved-tensor hooks)."""
    hidden, keys = shape.hidden, shape.kv_heads * shape.head_dim
    experts = shape.experts_per_token * shape.expert_intermediate if shape.experts else shape.intermediate
    wide = (4 if shape.gated else 2) * experts
    if element == 4:
        return 4.0 * (8 * hidden + wide + 2 * keys)
    return 2.0 * (6 * hidden + wide + 2 * keys) + 8 * hidden


def work_of(resolved: ResolvedSpec, shape: ModelShape, lengths: DataLengths, trained: int) -> Work:
    """The work of an average update on one of the ranks; `trained` parameters get gradients (of adapters, or of the model).

    Full: 6M + A a token; LoRA 4M + A and 6 for each parameter of the adapters; recomputed layers 2M + A/3 more; the head only at supervised positions.
    """
    spec, world = resolved.spec, resolved.world_size
    cut = cut_update(spec, world, lengths)
    element, tokens = element_bytes(spec), cut.rank_tokens
    layers, head = float(matmul_parameters(shape)), lengths.supervised_share * shape.vocab * shape.hidden
    attention = 6.0 * shape.layers * shape.heads * shape.head_dim * lengths.seen
    again = recomputed_share(spec.train.gradient_checkpointing, shape.layers)
    trained_share = min(1.0, trained / max(1, shape.parameters))
    products = 4.0 * (layers + head) + (2.0 * (layers + head) * trained_share if spec.method.type == "full" else 6.0 * trained)
    share = world if spec.zero.stage else 1
    offloaded = spec.zero.offload_optimizer != "none"
    step_bytes = OPTIMIZER_BYTES * trained / share
    moved = tokens * shape.layers * layer_activation_bytes(shape, element) * (MOVES + MOVES_AGAIN * again)
    moved += tokens * lengths.supervised_share * shape.vocab * LOGIT_BYTES
    if spec.method.type == "qlora":
        moved += cut.micro_steps * (2 + again) * layers * (QUANTISED_BYTES * spec.method.bits / 4 + 2 * element)
    return Work(
        matmul_flops=tokens * (products + again * 2 * layers),
        attention_flops=tokens * attention * (1 + again / 3),
        model_flops=tokens * (products + attention),
        moved_bytes=moved + (0.0 if offloaded else step_bytes),
        host_moved_bytes=step_bytes if offloaded else 0.0,
        kernels=cut.micro_steps * shape.layers * KERNELS_A_LAYER * (1 + again / 3) + 20,
        micro_step_tokens=tokens / cut.micro_steps,
        element_bytes=element,
        width=shape.hidden,
    )
