"""ZeRO stage 3 by decoder layer: its weights are gathered together, not one module after the other."""

from __future__ import annotations

import torch
from deepspeed.utils import set_z3_leaf_module

from ftcore.model.recompute import decoder_layers


def gather_whole_layers(model: torch.nn.Module) -> int:
    """Marks the decoder layers of `model` as leaves for ZeRO-3, before its engine is built; returns how many.

    The host then walks one module a layer. None is marked when anything is frozen, as with adapters: where the first
    layer's input needs no gradient, DeepSpeed 0.19.8 lets go of its weights before their gradients are there, and fails on their size.
    """
    if not all(parameter.requires_grad for parameter in model.parameters()):
        return 0
    layers = decoder_layers(model)
    for layer in layers:
        set_z3_leaf_module(layer, True)
    return len(layers)
