"""Activation checkpointing: which decoder layers are computed again in the backward pass instead of being kept."""

from __future__ import annotations

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from ftcore.spec.errors import SpecError
from ftcore.spec.recomputation import recomputed_layers

WHERE = "train.gradient_checkpointing"


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
