"""The matrices that PEFT adds to a base for one adapter, without PEFT."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ftcore.spec.sections import MethodSection
from launcher.memory.shape import ModelShape, Tensor

PEFT = "base_model.model."
"""What PEFT puts before the names of the base's parameters."""
ALL_LINEAR = ("all-linear",)
FUSED: dict[str, dict[str, str]] = {
    "mixtral": {"gate": "gate.weight", "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"},
    "qwen3_moe": {"gate": "gate.weight", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj"},
}
"""Families whose experts were modules once: name as a target -> the parameter it is now, in each layer with experts.

PEFT adapts such parameters for these names and for all-linear (peft/utils/transformers_weight_conversion.py)."""


def adapter_matrices(method: MethodSection, shape: ModelShape, adapter: str, rank: int) -> Iterator[Tensor]:
    """The parameters of `adapter` of this rank, without the modules that are trained whole; shapes as torch holds them."""
    targets, parameters = method.target_modules, frozenset[str]()
    if shape.family in FUSED and shape.experts:
        targets, parameters = _converted(method.target_modules, shape)
    for tensor in with_tied_head(shape):
        if tensor.kind in ("expert", "router"):
            yield from _of_parameter(tensor, adapter, rank, parameters)
        elif tensor.name.endswith(".weight") and (found := _only(tensor, targets)) is not None:
            yield from _of_module(found, method, adapter, rank)


def with_tied_head(shape: ModelShape) -> tuple[Tensor, ...]:
    """Every parameter, and for a tied head the matrix that it shows: adapted or trained whole it is a module as any other."""
    head = Tensor(name="lm_head.weight", shape=(shape.vocab, shape.hidden), kind="head", module="linear")
    return (*shape.tensors, head) if shape.tied else shape.tensors


def _converted(targets: tuple[str, ...], shape: ModelShape) -> tuple[tuple[str, ...], frozenset[str]]:
    """(names of modules, parameters) that PEFT adapts instead in a model whose experts are fused."""
    mapping = FUSED[shape.family]
    named = {linear.name for linear in shape.linears if linear.module in ("linear", "conv1d")} | mapping.keys() if targets == ALL_LINEAR else set(targets)
    return tuple(name for name in named if name not in mapping), frozenset(mapping[name] for name in named if name in mapping)


def _only(tensor: Tensor, targets: tuple[str, ...]) -> Tensor | None:
    """`tensor` in the layers where `targets` name its module; None when in none."""
    if targets == ALL_LINEAR:
        return tensor if tensor.module in ("linear", "conv1d") and tensor.kind != "head" else None
    module = tensor.name.removesuffix(".weight")
    if tensor.layers is None:
        return tensor if _named(module, targets) else None
    layers = tuple(layer for layer in tensor.layers if _named(module.format(layer), targets))
    return replace(tensor, layers=layers) if layers else None


def _named(module: str, targets: tuple[str, ...]) -> bool:
    return any(module == target or module.endswith(f".{target}") for target in targets)


def _of_module(tensor: Tensor, method: MethodSection, adapter: str, rank: int) -> Iterator[Tensor]:
    """What a linear or embedding layer gets (peft/tuners/lora/layer.py)."""
    module = PEFT + tensor.name.removesuffix(".weight")
    if tensor.module == "embedding":
        rows, width = tensor.shape
        yield replace(tensor, name=f"{module}.lora_embedding_A.{adapter}", shape=(rank, rows))
        yield replace(tensor, name=f"{module}.lora_embedding_B.{adapter}", shape=(width, rank))
        wide = width
    else:
        wide, inner = tensor.shape if tensor.module != "conv1d" else tensor.shape[::-1]
        yield replace(tensor, name=f"{module}.lora_A.{adapter}.weight", shape=(rank, inner))
        yield replace(tensor, name=f"{module}.lora_B.{adapter}.weight", shape=(wide, rank))
    if method.use_dora:
        yield replace(tensor, name=f"{module}.lora_magnitude_vector.{adapter}.weight", shape=(wide,))


def _of_parameter(tensor: Tensor, adapter: str, rank: int, wanted: frozenset[str]) -> Iterator[Tensor]:
    """What a router or the experts of a layer get: matrices of `rank` an expert; two ranks where one parameter was two matrices."""
    module, _, leaf = tensor.name.rpartition(".")
    name = leaf if tensor.kind == "expert" else f"{module.rpartition('.')[2]}.{leaf}"
    if name not in wanted:
        return
    *experts, out, inner = tensor.shape
    inside = rank * (2 if name == "gate_up_proj" else 1) * (experts[0] if experts else 1)
    # Two parameters of one module are wrapped one around the other.
    outer = f"{PEFT}{module}{'.base_layer' if name == 'gate_up_proj' else ''}"
    yield replace(tensor, name=f"{outer}.lora_A.{adapter}.weight", shape=(inside, inner))
    yield replace(tensor, name=f"{outer}.lora_B.{adapter}.weight", shape=(out, inside))
