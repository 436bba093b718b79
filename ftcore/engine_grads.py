"""Every touch of the gradients that DeepSpeed 0.19.8 holds between the last backward and the step: read, measured and scaled by slice.

After the last backward of an update (and `Engine.end_backwards`) gradients are averaged over the ranks in every stage;
in fp16 they still carry the loss scale, and clipping comes in `step`. Where they lie then, from the source:
  stage 0                  parameter.grad, whole on every rank (runtime/engine.py, _backward_epilogue)
  stages 1/2               optimizer.averaged_gradients[group]: the rank's partition as a list of pieces (zero/stage_1_and_2.py)
  bf16 stage 1, fp32 sums  optimizer.fp32_groups_gradients[group][parameter]: whole on every rank (runtime/bf16_optimizer.py)
  stage 3                  optimizer.averaged_gradients[sub-group][parameter]: the rank's part, padded (zero/stage3.py)
  optimizer on the CPU     the flat fp32 partition's own .grad, with the norms of each parameter worked out beforehand
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate

import torch

from ftcore.dist import sum_over_ranks
from ftcore.engine import Engine
from ftcore.engine_state import OwnedSlice, owned_slices


def forget_gradients(engine: Engine) -> None:
    """Clears what stage 3 still holds of the last update's gradients; to be called before an update's first forward. No collective.

    DeepSpeed overwrites it in an update's first backward, and adds to it in all others (zero/stage3.py, partition_grads):
    a parameter that a later backward is the first to reach, of another adapter or an expert, would get the last update's gradient as well.
    """
    if engine.stage == 3:
        engine.optimizer.grad_partitions_flat_buffer.zero_()


def loss_scale(engine: Engine) -> float:
    """What gradients are multiplied by until the step: fp16's scale, 1 in every other precision."""
    return float(getattr(engine.optimizer, "loss_scale", 1.0))


def gradient_slices(engine: Engine) -> Iterator[tuple[OwnedSlice, torch.Tensor]]:
    """This rank's slices with their gradients, `numel` elements each, averaged over the ranks and times `loss_scale`.

    To be called after the last backward of an update and before its step. A parameter that no loss reached
    has a gradient of zeros, or is left out in stage 0. Over all ranks every element comes once.
    """
    slices = owned_slices(engine)
    if engine.stage == 0:
        gradients = {name: parameter.grad for name, parameter in engine.module.named_parameters() if parameter.grad is not None}
        yield from ((owned, owned.view(gradients[owned.name].contiguous())) for owned in slices if owned.name in gradients)
    elif _is_offloaded(engine):
        _wait_for_copies(engine)
        yield from ((owned, owned.view(owned.flat.grad)) for owned in slices if owned.flat.grad is not None)
    elif engine.stage == 3:
        pieces = _stage3_pieces(engine)
        yield from ((owned, pieces[owned.name].view(-1).narrow(0, 0, owned.numel)) for owned in slices if owned.name in pieces)
    elif _keeps_whole_gradients(engine):
        flats = _partitions_of_whole_gradients(engine)
        yield from ((owned, owned.view(flats[id(owned.flat)])) for owned in slices)
    else:
        yield from _stage12_gradients(engine, slices)


def group_norms(engine: Engine, group_of: dict[str, int]) -> list[float]:
    """The global gradient norm of each group, averaged, unscaled and before clipping; equal on every rank.

    `group_of` gives each trained parameter's group, numbered from 0; parameters that are not in it don't count.
    One collective, whatever the number of groups. Every rank must call it, after the last backward and before the step.
    """
    count = max(group_of.values(), default=-1) + 1
    groups, norms = [], []
    for owned, gradient in gradient_slices(engine):
        if owned.name in group_of:
            groups.append(group_of[owned.name])
            norms.append(torch.linalg.vector_norm(gradient, dtype=torch.float32))
    squares = [0.0] * count
    # One transfer to the host; squares in double, since an fp16 loss scale would overflow single precision.
    for group, norm in zip(groups, torch.stack(norms).tolist() if norms else (), strict=True):
        squares[group] += norm * norm
    scale = loss_scale(engine)
    return [math.sqrt(total) / scale for total in sum_over_ranks(squares, engine.ranks)]


@torch.no_grad()
def scale_gradients_(engine: Engine, factor_by_name: Callable[[str], float]) -> None:
    """Multiplies each trained parameter's gradient by its factor, in place, where the step will read it.

    Every rank must call it with the same factors, after the last backward and before the step; DeepSpeed's own
    norm and clipping then see the scaled gradients. No collective.
    """
    for name, gradient in _held_gradients(engine):
        factor = factor_by_name(name)
        if factor != 1.0:
            gradient.mul_(factor)
    if engine.stage and _is_offloaded(engine):
        _scale_stored_norms(engine, factor_by_name)


def _held_gradients(engine: Engine) -> Iterator[tuple[str, torch.Tensor]]:
    """Every gradient that this rank holds, owned or not: what is whole on all ranks must be scaled on all of them."""
    if engine.stage == 0:
        yield from ((name, parameter.grad) for name, parameter in engine.module.named_parameters() if parameter.grad is not None)
    elif _keeps_whole_gradients(engine):
        names = _names(engine)
        optimizer = engine.optimizer
        for group, gradients in zip(optimizer.bf16_groups, optimizer.fp32_groups_gradients, strict=True):
            yield from ((names[id(parameter)], gradient) for parameter, gradient in zip(group, gradients, strict=True))
    else:
        yield from ((owned.name, gradient) for owned, gradient in gradient_slices(engine))


def _names(engine: Engine) -> dict[int, str]:
    return {id(parameter): name for name, parameter in engine.module.named_parameters()}


def _is_offloaded(engine: Engine) -> bool:
    """Whether the optimizer's state lies in host memory and its gradients with it."""
    optimizer = engine.optimizer
    return bool(getattr(optimizer, "offload_optimizer", False) if engine.stage == 3 else getattr(optimizer, "cpu_offload", False))


def _wait_for_copies(engine: Engine) -> None:
    wait = getattr(engine.optimizer, "_wait_for_offload_copies", None)
    if wait is not None:
        wait()


def _keeps_whole_gradients(engine: Engine) -> bool:
    """BF16_Optimizer: each rank keeps every averaged gradient, in one flat tensor a group."""
    return hasattr(engine.optimizer, "fp32_groups_gradients")


def _partitions_of_whole_gradients(engine: Engine) -> dict[int, torch.Tensor]:
    """Id of the flat master -> the part of the flat gradients that it steps with."""
    optimizer = engine.optimizer
    pairs = zip(optimizer.fp32_groups_flat_partition, optimizer.fp32_groups_gradient_flat_partition, strict=True)
    return {id(master): gradient for master, gradient in pairs}


def _stage12_gradients(engine: Engine, slices: list[OwnedSlice]) -> Iterator[tuple[OwnedSlice, torch.Tensor]]:
    """The pieces of a partition follow each other without gaps, so that a slice's piece is the one at its offset."""
    optimizer = engine.optimizer
    pieces: dict[int, dict[int, torch.Tensor]] = {}
    for group, flat in enumerate(optimizer.single_partition_of_fp32_groups):
        held = optimizer.averaged_gradients.get(group) or []
        starts = accumulate((piece.numel() for piece in held), initial=0)
        # A piece without elements starts where the next one does, and must not hide it.
        pieces[id(flat)] = {start: piece for start, piece in zip(starts, held, strict=False) if piece.numel()}
    for owned in slices:
        piece = pieces[id(owned.flat)].get(owned.offset)
        if piece is not None:
            yield owned, piece


def _stage3_pieces(engine: Engine) -> dict[str, torch.Tensor]:
    """Name -> this rank's part of the averaged gradient, padded to the same length on every rank."""
    optimizer, names = engine.optimizer, _names(engine)
    pieces = {}
    for index, group in enumerate(optimizer.fp16_groups):
        for parameter, piece in zip(group, optimizer.averaged_gradients.get(index) or [], strict=False):
            pieces[names[id(parameter)]] = piece
    return pieces


def _scale_stored_norms(engine: Engine, factor_by_name: Callable[[str], float]) -> None:
    """With the optimizer on the CPU, DeepSpeed clips by norms that it took when the gradients were copied."""
    optimizer = engine.optimizer
    by_id: defaultdict[int, str] = defaultdict(str)
    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad:
            by_id[optimizer.get_param_id(parameter)] = name
    for key in optimizer.norm_for_param_grads:
        optimizer.norm_for_param_grads[key] = optimizer.norm_for_param_grads[key] * factor_by_name(by_id[key])
