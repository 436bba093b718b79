"""The gradients that are alive while the backward pass goes through one decoder layer. Found by tracing small models: ftcore/exact_trace.py."""

from __future__ import annotations

from launcher.memory.activation_compute import Compute, is_down
from launcher.memory.activation_layers import adapts_experts
from launcher.memory.shape import ModelShape


def layer_gradients(shape: ModelShape, compute: Compute, tokens: int) -> int:
    """Bytes on top of what the layer saved, at the worst of three moments, for the largest layer."""
    width = max(shape.intermediate, shape.experts_per_token * shape.expert_intermediate)
    a_token = compute.product * tokens
    down = max((tensor.numel for tensor in shape.tensors if is_down(tensor) and tensor.kind in ("mlp", "expert")), default=0)
    up = max((tensor.numel for tensor in shape.tensors if tensor.kind == "expert" and not is_down(tensor)), default=0)
    moments = [2 * a_token * (width + shape.hidden)]
    if compute.full:
        moments.append(a_token * (width + 2 * shape.hidden) + compute.b * down)
    if up and compute.full:
        # By the time of the first matrices of all experts, both halves and their product are gone.
        moments.append(round(a_token * (1.5 * shape.hidden - 2 * width)) + compute.b * up)
    if up and adapts_experts(shape, compute):
        # The second matrices, base and adapter together, are gone.
        moments.append(a_token * (width + 2 * shape.hidden) + compute.b * (up - down))
    return max(moments)
