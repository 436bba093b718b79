"""Activation checkpointing: which decoder layers are computed again in the backward pass instead of being kept."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from ftcore.spec.errors import SpecError

WHERE = "train.gradient_checkpointing"


def recomputed_layers(rule: str, layers: int) -> list[int]:
    """Indices, of `layers` decoder layers, that are recomputed under `rule`: none, full, every:K or sqrt.

    every:K recomputes layers 0, K, 2K, ...; sqrt keeps round(sqrt(layers)) of them, evenly spread and the last one
    among them, and recomputes the rest. The last is the cheapest to keep: its backward comes first.
    """
    if rule == "none":
        return []
    if rule == "full":
        return list(range(layers))
    if rule == "sqrt":
        kept = round(math.sqrt(layers))
        keep = {(index + 1) * layers // kept - 1 for index in range(kept)}
        return [layer for layer in range(layers) if layer not in keep]
    return list(range(0, layers, int(rule.removeprefix("every:"))))


def recompute_activations(base: torch.nn.Module, rule: str) -> None:
    """Makes the chosen decoder layers of `base` recompute their activations, with the random state they had (dropout stays the same).

    Non-reentrant: gradients reach adapters although the model's input needs none, and each parameter gets its
    gradient once, as DeepSpeed's hooks expect. Raises SpecError when the model has no layers that can.
    """
    if rule == "none":
        return
    layers = decoder_layers(base)
    if not layers:
        what = f"{type(base).__name__} has no layers that can recompute their activations"
        raise SpecError(what, where=WHERE, fix="set train.gradient_checkpointing to none and lower batch.micro_batch_tokens")
    again = partial(checkpoint, use_reentrant=False)
    for index in recomputed_layers(rule, len(layers)):
        layers[index]._gradient_checkpointing_func = again  # type: ignore[assignment]
        layers[index].gradient_checkpointing = True  # type: ignore[assignment]


def decoder_layers(base: torch.nn.Module) -> list[torch.nn.Module]:
    """The repeated layers of a transformers model, in the order they run; empty when it doesn't mark them."""
    return [module for module in base.modules() if isinstance(module, GradientCheckpointingLayer)]
