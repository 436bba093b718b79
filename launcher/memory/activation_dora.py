"""What DoRA takes beside LoRA: what base and adapter give is saved for the gradient of each magnitude, and norms are taken of whole matrices."""

from __future__ import annotations

from launcher.memory.activation_compute import Compute, columns_in, last_name, reads_layer_input, rows_out
from launcher.memory.shape import ModelShape, Tensor


def dora_matrices(own: list[Tensor], compute: Compute) -> list[Tensor]:
    """The matrices whose adapters have a magnitude: for each autograd saves what the base gives and what the adapter gives."""
    return [tensor for tensor in own if compute.method.use_dora and tensor.kind in ("attention", "mlp") and compute.targets(last_name(tensor))]


def dora_moment(shape: ModelShape, compute: Compute, tokens: int) -> int:
    """Bytes that live while the norm of the largest adapted matrix is taken: an identity, the adapter's product, that scaled, and both together.

    Beside them what the layer adds up, and what the base gave.
    """
    packed = compute.method.type == "qlora"
    return max(
        (
            2 * compute.product * shape.hidden * tokens + compute.product * columns_in(tensor) ** 2 + compute.b * (4 if packed else 3) * tensor.numel
            for tensor in dora_matrices([tensor for tensor in shape.tensors if tensor.layers is not None], compute)
        ),
        default=0,
    )


def computes_base_again(tensor: Tensor, compute: Compute) -> bool:
    """Whether the base's product is computed a second time: of the input with dropout."""
    return bool(compute.method.use_dora and compute.method.lora_dropout and tensor.kind in ("attention", "mlp") and compute.targets(last_name(tensor)))


def unpacked_bytes(shape: ModelShape, own: list[Tensor], compute: Compute, *, first_frozen: bool) -> int:
    """Bytes of quantised matrices that autograd saves unpacked, for that second product; no longer quantised, they take what they would without QLoRA."""
    if compute.method.type != "qlora" or compute.autocast:
        return 0
    again = [tensor for tensor in own if computes_base_again(tensor, compute)]
    return compute.b * sum(tensor.numel for tensor in again if not (first_frozen and reads_layer_input(shape, tensor)))


def scale_bytes(shape: ModelShape, own: list[Tensor], compute: Compute, *, first_frozen: bool) -> int:
    """Bytes of each magnitude's quotients; the one that scales the base is needed only where the base's input has a gradient."""
    matrices = dora_matrices(own, compute)
    return sum(compute.b * rows_out(tensor) * (2 if first_frozen and reads_layer_input(shape, tensor) else 3) for tensor in matrices)
