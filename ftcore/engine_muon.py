"""Muon over the ranks: whole matrices are put together from the slices that each rank holds, orthogonalised, and given back as gradients.

DeepSpeed 0.19.8 has a Muon of its own. It is not used: stages 1-3 clip by the norm of the orthogonalised update, not of the gradient,
stage 3 needs gradients that are scaled another way, and its momentum lies in pieces that no other split can read (docs/decisions/0007).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from ftcore.dist import sum_in_place
from ftcore.engine import Engine
from ftcore.engine_grads import gradient_slices, loss_scale, scale_gradients_
from ftcore.engine_state import OwnedSlice, state_of, trained_shapes
from ftcore.muon import MOMENTUM_BUFFER, advance_momentum, muon_update

BUCKET_ELEMENTS = 2**26
"""Of the matrices that are put together at once; a larger matrix is alone. One bucket and the iteration's temporaries are held, in fp32."""


def refuse_step_(engine: Engine) -> None:
    """Makes every gradient NaN, so that no rank takes the step."""
    scale_gradients_(engine, lambda name: math.nan)


@torch.no_grad()
def orthogonalise_gradients_(engine: Engine, momentum: float) -> None:
    """Puts Muon's update where the step reads the gradients of hidden matrices, and advances their momentum.

    To be called on every rank after the last backward and clipping, with finite gradients. Each matrix is orthogonalised on one rank:
    the same numbers on any number of ranks. Two sums over the ranks for each bucket (stage 0: one).
    """
    hidden = {name for name, group in engine.named_groups() if group["is_hidden"]}
    held = dict(_held(engine, hidden))
    scale = loss_scale(engine)
    for bucket in _buckets({name: shape for name, shape in trained_shapes(engine).items() if name in hidden}):
        whole = torch.zeros(sum(map(math.prod, bucket.values())), dtype=torch.float32, device=engine.ranks.device)
        parts = dict(zip(bucket, whole.split([math.prod(shape) for shape in bucket.values()]), strict=True))
        for name in bucket:
            if name in held:
                owned, gradient = held[name]
                ahead = advance_momentum(_momentum(engine, owned), gradient.flatten().float() / scale, momentum)
                parts[name].narrow(0, owned.start, owned.numel).copy_(ahead)
        if engine.stage:
            sum_in_place(whole)
        for index, (name, shape) in enumerate(bucket.items()):
            mine = index % engine.ranks.world_size == engine.ranks.rank
            parts[name].copy_(muon_update(parts[name], shape)) if mine else parts[name].zero_()
        sum_in_place(whole)
        for name in bucket:
            if name in held:
                owned, gradient = held[name]
                gradient.copy_((parts[name].narrow(0, owned.start, owned.numel) * scale).view(gradient.shape))


def _held(engine: Engine, hidden: set[str]) -> Iterator[tuple[str, tuple[OwnedSlice, torch.Tensor]]]:
    """Hidden matrices' gradients on this rank: its slices, and in stage 0 whole ones, with the momentum of all of it on every rank."""
    if engine.stage:
        yield from ((owned.name, (owned, gradient)) for owned, gradient in gradient_slices(engine) if owned.name in hidden)
        return
    for name, parameter in engine.module.named_parameters():
        if name in hidden and parameter.grad is not None:
            yield name, (OwnedSlice(name, 0, parameter.numel(), parameter, 0), parameter.grad)


def _momentum(engine: Engine, owned: OwnedSlice) -> torch.Tensor:
    state = state_of(engine, owned)
    if MOMENTUM_BUFFER not in state:
        state[MOMENTUM_BUFFER] = torch.zeros_like(owned.flat.detach())
    return owned.view(state[MOMENTUM_BUFFER])


def _buckets(shapes: dict[str, tuple[int, ...]]) -> Iterator[dict[str, tuple[int, ...]]]:
    bucket: dict[str, tuple[int, ...]] = {}
    elements = 0
    for name, shape in shapes.items():
        if bucket and elements + math.prod(shape) > BUCKET_ELEMENTS:
            yield bucket
            bucket, elements = {}, 0
        bucket[name] = shape
        elements += math.prod(shape)
    if bucket:
        yield bucket
