"""The parameters of the model to train: which are trained, which an adapter adds, and what each takes where it is held whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ftcore.spec.sections import MethodSection, OptimizerSection, Spec
from launcher.memory.lora import PEFT, adapter_matrices, with_tied_head
from launcher.memory.shape import ModelShape, Tensor

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "uint8": 1}
BLOCK, NESTED_BLOCK = 64, 256
"""Numbers that share a scale, and scales that share one when they are quantised as well (bitsandbytes functional.quantize_4bit)."""
DECODER_BYTES, NESTED_BYTES = 16 * 4, 256 * 4 + 4
"""The table of the 16 values of a 4-bit type; that of the scales' 256 values and their mean: each quantised matrix has its own."""
SINGLE = "default"
"""PEFT's name for an adapter that has no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A parameter of the model to train, or the same one of several decoder layers."""

    tensor: Tensor
    """Its whole name (with what PEFT puts before and behind), shape, kind, and the layers that have it."""
    trained: bool
    element_bytes: int
    """Of one number as the model computes with it; of quantised ones those of the type they are stored in."""
    whole_bytes: int
    """Of one copy, without the tables of quantisation."""
    table_bytes: int = 0
    """Scales and tables of one copy, beside the parameter: never sharded."""
    adapter: str = ""
    """Name of the adapter it is part of; empty: of the base."""

    @property
    def numel(self) -> int:
        """Numbers in one copy, as the base has them."""
        return self.tensor.numel

    @property
    def stored_numel(self) -> int:
        """Elements of one copy as DeepSpeed sees it: packed ones hold several numbers."""
        return self.whole_bytes // self.element_bytes

    @property
    def copies(self) -> int:
        """How often the model has it."""
        return self.tensor.copies

    @property
    def total(self) -> int:
        """Numbers in all copies."""
        return self.tensor.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Every parameter of the model to train."""

    held: tuple[Held, ...]

    @property
    def parameters(self) -> int:
        """Numbers of all of them, adapters and copies included."""
        return sum(each.total for each in self.held)

    @property
    def trained(self) -> int:
        """Numbers that are trained."""
        return sum(each.total for each in self.held if each.trained)

    def trained_ones(self) -> Iterator[Held]:
        """Those that are trained."""
        return (each for each in self.held if each.trained)

    def frozen_ones(self) -> Iterator[Held]:
        """Those that are not."""
        return (each for each in self.held if not each.trained)


def model_layout(spec: Spec, shape: ModelShape) -> Layout:
    """The parameters that ftcore.model builds for this spec on a base of this shape."""
    width = BYTES[str(spec.model.dtype)]
    method = spec.method
    prefix = "" if method.type == "full" else PEFT
    base = [_base(tensor, method, width, prefix) for tensor in shape.tensors]
    own = [] if method.type == "full" else list(_adapters(method, shape, width))
    return Layout(held=tuple(_frozen_by_pattern([*base, *own], spec.optimizer)))


def quantised_bytes(numel: int, method: MethodSection) -> tuple[int, int]:
    """(bytes of the packed numbers, bytes of scales and tables) of one matrix in 4 bits, as bitsandbytes' quantize_4bit holds it."""
    unit = BYTES[method.storage_dtype]
    packed = math.ceil(math.ceil(numel / 2) / unit) * unit
    blocks = math.ceil(numel / BLOCK)
    if not method.double_quant:
        return packed, 4 * blocks + DECODER_BYTES
    return packed, blocks + 4 * math.ceil(blocks / NESTED_BLOCK) + NESTED_BYTES + DECODER_BYTES


def _base(tensor: Tensor, method: MethodSection, width: int, prefix: str) -> Held:
    named = replace(tensor, name=prefix + tensor.name)
    plain = Held(tensor=named, trained=method.type == "full", element_bytes=width, whole_bytes=tensor.numel * width)
    if method.type != "qlora" or tensor.kind in ("head", "bias") or tensor.module not in ("linear", "conv1d"):
        return plain
    if method.bits == 8:
        # Linear8bitLt: a byte a number, and the largest absolute value of each row in fp32 (SCB).
        rows = tensor.shape[-2] if tensor.module == "linear" else tensor.shape[-1]
        return replace(plain, element_bytes=1, whole_bytes=tensor.numel, table_bytes=4 * rows)
    packed, tables = quantised_bytes(tensor.numel, method)
    return replace(plain, element_bytes=BYTES[method.storage_dtype], whole_bytes=packed, table_bytes=tables)


def _adapters(method: MethodSection, shape: ModelShape, width: int) -> Iterator[Held]:
    named = {name: adapter.r for name, adapter in method.adapters.items()} or {SINGLE: None}
    for adapter, rank in named.items():
        for part in adapter_matrices(method, shape, adapter, method.r if rank is None else rank):
            yield Held(tensor=part, trained=True, element_bytes=width, whole_bytes=part.numel * width, adapter=adapter)
        for tensor in _saved_whole(method, shape):
            copy = replace(tensor, name=f"{PEFT}{_module(tensor)}.modules_to_save.{adapter}.{tensor.name.rpartition('.')[2]}")
            yield Held(tensor=copy, trained=True, element_bytes=width, whole_bytes=copy.numel * width, adapter=adapter)


def _saved_whole(method: MethodSection, shape: ModelShape) -> Iterator[Tensor]:
    for tensor in with_tied_head(shape):
        # PEFT compares the ends of names here, not their last parts: norm is input_layernorm as well.
        layers = tensor.layers if tensor.layers is not None else (0,)
        found = tuple(layer for layer in layers if _module(tensor).format(layer).endswith(method.modules_to_save))
        if found:
            yield replace(tensor, layers=None if tensor.layers is None else found)


def _module(tensor: Tensor) -> str:
    """The module that has it."""
    return tensor.name.removesuffix(".weight").removesuffix(".bias")


def _frozen_by_pattern(held: list[Held], optimizer: OptimizerSection) -> Iterator[Held]:
    """The same, with what the groups of parameters freeze: the first pattern that matches a name decides."""
    if not any(group.freeze for group in optimizer.parameter_groups):
        yield from held
        return
    for each in held:
        if not each.trained:
            yield each
            continue
        frozen = [is_frozen(name, optimizer) for name in each.tensor.names()]
        if each.tensor.layers is None or all(frozen) or not any(frozen):
            yield replace(each, trained=not frozen[0])
            continue
        for state in (True, False):
            layers = tuple(layer for layer, off in zip(each.tensor.layers, frozen, strict=True) if off is not state)
            yield replace(each, trained=state, tensor=replace(each.tensor, layers=layers))


def is_frozen(name: str, optimizer: OptimizerSection) -> bool:
    """Whether the first group of parameters whose pattern matches `name` freezes it."""
    return next((group.freeze for group in optimizer.parameter_groups if fnmatchcase(name, group.pattern)), False)
