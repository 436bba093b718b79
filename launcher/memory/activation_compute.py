"""How decoder layers are computed, and which of their matrices save their input for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

from ftcore.spec.sections import MethodSection
from launcher.memory.shape import ModelShape, Tensor

FLOAT32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """How a layer is computed: the types, and what is trained."""

    b: int
    """Bytes of a number in the compute type."""
    autocast: bool
    """fp32 weights with bf16 matrix products."""
    method: MethodSection
    stage: int = 0
    """Of ZeRO. In stage 3 DeepSpeed's own linear function saves its input also where the weight is frozen (runtime/zero/linear.py)."""

    @property
    def product(self) -> int:
        """Bytes of a number that a matrix product takes and gives."""
        return 2 if self.autocast else self.b

    @property
    def full(self) -> bool:
        """Whether the base itself is trained."""
        return self.method.type == "full"

    def targets(self, name: str) -> bool:
        """Whether a linear layer of that name has an adapter."""
        return not self.full and (self.method.target_modules == ("all-linear",) or name in self.method.target_modules)


def saves(compute: Compute, names: list[str]) -> int:
    """How often the common input of these linear layers is saved: where one is trained, or has an adapter that takes it as it is.

    Once; under bf16_autocast each layer and adapter that needs it makes a 16-bit copy of its own.
    """
    adapted = 0 if compute.method.lora_dropout else sum(compute.targets(name) for name in names)
    kept = len(names) if compute.full or (compute.stage == 3 and compute.method.type == "lora") else 0
    return adapted + kept if compute.autocast else min(adapted + kept, 1)


def reads_layer_input(shape: ModelShape, tensor: Tensor) -> bool:
    """Whether a matrix reads the layer's own input, normed, and nothing that the layer has made of it."""
    if tensor.kind == "attention":
        return not is_output(tensor)
    return shape.parallel and not is_down(tensor)


def last_name(tensor: Tensor) -> str:
    """The last part of its module's name."""
    return tensor.name.removesuffix(".weight").rpartition(".")[2]


def rows_out(tensor: Tensor) -> int:
    """Numbers that a matrix gives."""
    return tensor.shape[-1] if tensor.module == "conv1d" else tensor.shape[-2]


def columns_in(tensor: Tensor) -> int:
    """Numbers that a matrix takes."""
    return tensor.shape[0] if tensor.module == "conv1d" else tensor.shape[-1]


def is_output(tensor: Tensor) -> bool:
    """Whether it is attention's last matrix."""
    return last_name(tensor) in ("o_proj", "dense", "c_proj", "out_proj")


def is_down(tensor: Tensor) -> bool:
    """Whether it is the last matrix of an MLP or of experts."""
    return last_name(tensor) in ("down_proj", "fc2", "c_proj", "dense_4h_to_h")


def of_heads(tensor: Tensor) -> bool:
    """Whether it is a norm of queries or keys."""
    return tensor.kind == "norm" and any(part in tensor.name for part in (".q_norm", ".k_norm", ".q_layernorm", ".k_layernorm"))
