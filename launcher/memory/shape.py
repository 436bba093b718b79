"""The sizes of a model: every parameter it has, by name, shape and kind, without building it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ftcore.spec.errors import SpecError
from launcher.memory.shape_config import WHERE, Config

KINDS = ("embedding", "head", "attention", "mlp", "expert", "router", "norm", "bias", "other")
"""What a parameter is for. Biases are `bias`, wherever they are."""
LINEAR_KINDS = ("attention", "mlp", "expert", "router")
"""Kinds of the matrices inside decoder layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One parameter, or the same one of several decoder layers."""

    name: str
    """Its whole name in transformers' model, the number of the layer written `{}`."""
    shape: tuple[int, ...]
    """As torch holds it: (out, in) for a linear layer, (in, out) for GPT-2's Conv1D, (experts, out, in) for fused experts."""
    kind: str
    """One of KINDS."""
    module: str
    """What holds it: linear, conv1d, embedding, norm, router, experts or other (the last three are no linear layers to PEFT and bitsandbytes)."""
    layers: tuple[int, ...] | None = None
    """Numbers of the decoder layers that have it; None: it is outside of the layers, once."""

    @property
    def copies(self) -> int:
        """How often the model has it."""
        return 1 if self.layers is None else len(self.layers)

    @property
    def numel(self) -> int:
        """Numbers in one copy."""
        return math.prod(self.shape)

    @property
    def total(self) -> int:
        """Numbers in all copies."""
        return self.numel * self.copies

    def names(self) -> list[str]:
        """The whole name of each copy."""
        return [self.name] if self.layers is None else [self.name.format(layer) for layer in self.layers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """The matrices of one name in the decoder layers."""

    name: str
    """Last part of the module's name: q_proj, down_proj, c_attn."""
    rows_out: int
    columns_in: int
    a_layer: int
    """Matrices of this name in a decoder layer that has it: 1, or the number of experts."""
    kind: str
    """attention, mlp, expert or router."""
    module: str
    """linear, conv1d, router or experts."""
    bias: bool
    layers: int
    """Decoder layers that have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A causal language model's sizes."""

    family: str
    """model_type of config.json."""
    layers: int
    hidden: int
    intermediate: int
    """Width of a dense MLP (of one expert where every layer has experts)."""
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    """Whether the head is the embedding."""
    experts: int = 0
    """Experts of a layer that has them; 0: dense."""
    experts_per_token: int = 0
    expert_intermediate: int = 0
    """Width of one expert."""
    gated: bool = True
    """Whether the MLP multiplies an activated gate into its wide half (SwiGLU, GeGLU)."""
    activation: str = "silu"
    """hidden_act of config.json."""
    norm: str = "rms"
    """rms, layer (LayerNorm with weights) or bare (LayerNorm without)."""
    parallel: bool = False
    """Whether attention and MLP of a layer read the same normed input (NeoX, Phi)."""
    context: int = 0
    """Longest sequence that the model was made for; 0: not known."""
    window: int = 0
    """Tokens that the layers in `windowed` see."""
    windowed: tuple[int, ...] = ()
    """Numbers of the decoder layers whose attention sees a window only."""
    tensors: tuple[Tensor, ...]
    """Every parameter; a tied head is not among them."""

    @property
    def parameters(self) -> int:
        """All parameters, each counted once."""
        return sum(tensor.total for tensor in self.tensors)

    @property
    def layer_parameters(self) -> int:
        """Parameters of the largest decoder layer."""
        return max(sum(tensor.numel for tensor in self.tensors if tensor.layers is not None and layer in tensor.layers) for layer in range(self.layers))

    @property
    def embedding_parameters(self) -> int:
        """Parameters of token and position embeddings."""
        return self.count("embedding")

    @property
    def head_parameters(self) -> int:
        """Parameters of the head's matrix; 0 when it is tied to the embedding."""
        return self.count("head")

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes through: of the experts those it is sent to."""
        idle = sum(tensor.total * (self.experts - self.experts_per_token) // self.experts for tensor in self.tensors if tensor.kind == "expert")
        return self.parameters - idle

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The matrices inside decoder layers, in the model's order."""
        return tuple(_linear(tensor, self.tensors) for tensor in self.tensors if tensor.kind in LINEAR_KINDS)

    def count(self, *kinds: str) -> int:
        """Parameters of these kinds over the whole model."""
        return sum(tensor.total for tensor in self.tensors if tensor.kind in kinds)


def _linear(tensor: Tensor, among: Iterable[Tensor]) -> Linear:
    module = tensor.name.removesuffix(".weight")
    out, inner = tensor.shape[-2:] if tensor.module != "conv1d" else tensor.shape[::-1]
    return Linear(
        name=module.rpartition(".")[2],
        rows_out=out,
        columns_in=inner,
        a_layer=tensor.shape[0] if tensor.kind == "expert" and len(tensor.shape) == 3 else 1,
        kind=tensor.kind,
        module=tensor.module,
        bias=any(other.name == f"{module}.bias" for other in among),
        layers=tensor.copies,
    )


def read_shape(config: dict[str, Any]) -> ModelShape:
    """The shape of the model that this content of config.json describes.

    Raises SpecError for a family that is not known here, and naming every size that is missing or wrong.
    """
    family, known = config.get("model_type"), known_families()
    if not isinstance(family, str) or family not in known:
        raise SpecError(
            f"the sizes of {'a model without model_type' if family is None else f'models of type {str(family)[:40]!r}'} are not known from config.json alone",
            where=WHERE,
            fix=f"ftlaunch plan --exact builds the model without memory and counts; known are {', '.join(sorted(known))}",
        )
    values = Config(config)
    shape = known[family](values, family)
    values.require_right()
    return shape


def known_families() -> dict[str, Callable[[Config, str], ModelShape]]:
    """model_type -> what reads its shape."""
    from launcher.memory.shape_families import RECIPES, shape_like_llama
    from launcher.memory.shape_gpt import shape_of_gpt2, shape_of_neox

    return {"gpt2": shape_of_gpt2, "gpt_neox": shape_of_neox, **dict.fromkeys(RECIPES, shape_like_llama)}
