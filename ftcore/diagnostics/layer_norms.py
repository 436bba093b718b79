"""Gradient norms by layer of the model and by adapter, of the update that is about to be stepped."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from ftcore.engine import Engine
from ftcore.engine_grads import group_norms
from ftcore.engine_state import trained_shapes

_DECODER_LAYER = re.compile(r"^(?P<layer>(?:.*?\.)?(?:layers|layer|blocks|block|h)\.\d+)\.")
_ADAPTER_PART = re.compile(r"\.(?:lora_\w+|modules_to_save)\.(?P<adapter>[^.]+)")
_WRAPPERS = ("base_model.model.", "_orig_mod.", "module.")
"""What PEFT, torch.compile and data parallel wrappers put before the model's own names."""


def layer_gradient_norms(engine: Engine) -> dict[str, float | None]:
    """Layer -> global norm of its gradient, averaged over the ranks, unscaled and before clipping; in the model's order.

    A layer is a decoder layer (`model.layers.3`), or another module that holds trained parameters (`model.embed_tokens`,
    `model.norm`, `lm_head`); what belongs to an adapter carries its name: `model.layers.3/default`. None: not finite,
    which JSON can't say. The squares of the norms add up to the square of the update's norm. Every rank must call it,
    after the last backward and before the step; one collective.
    """
    names = list(trained_shapes(engine))
    layers = layers_of(names)
    numbers = {layer: number for number, layer in enumerate(dict.fromkeys(layers.values()))}
    norms = group_norms(engine, {name: numbers[layers[name]] for name in names})
    return {layer: norms[number] if math.isfinite(norms[number]) else None for layer, number in numbers.items()}


def layers_of(names: Iterable[str]) -> dict[str, str]:
    """Parameter -> the layer that it is counted under."""
    return {name: _layer(name) for name in names}


def _layer(name: str) -> str:
    adapter = _ADAPTER_PART.search(name)
    module = name[: adapter.start()] if adapter else name.rpartition(".")[0] or name
    for prefix in _WRAPPERS:
        module = module.removeprefix(prefix)
    decoder = _DECODER_LAYER.match(f"{module}.")
    layer = decoder["layer"] if decoder else module
    return f"{layer}/{adapter['adapter']}" if adapter else layer
