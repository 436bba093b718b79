"""Every touch of DeepSpeed's inner state, for 0.19.8: which slice of which parameter this rank owns, and where its values lie.

A slice is free of world size and stage: `numel` elements of the flattened parameter from `start`,
with its fp32 master values and its optimizer's moments. Source of the attribute names:
deepspeed/runtime/zero/stage_1_and_2.py, stage3.py and runtime/bf16_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ftcore.coded_moments import BLOCK, coded_fields, fresh_state, is_coded
from ftcore.engine import Engine
from ftcore.engine_fields import MASTER
from ftcore.spec.errors import CheckpointError

LOSS_SCALE_FIELDS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""Attributes of DeepSpeed's DynamicLossScaler that change while it trains (runtime/fp16/loss_scaler.py)."""
FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class OwnedSlice:
    """One rank's share of one trained parameter."""

    name: str
    """As in the unwrapped model's named_parameters."""
    start: int
    """First element, in the flattened parameter."""
    numel: int
    flat: torch.Tensor
    """The tensor the optimizer steps, in which this slice lies."""
    offset: int
    """Where in `flat` it begins."""

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """This slice of `flat` or of a moment of the same shape, as a view."""
        return tensor.detach().view(-1).narrow(0, self.offset, self.numel)


def owned_slices(engine: Engine) -> list[OwnedSlice]:
    """This rank's slices; over all ranks they cover every trained parameter once."""
    stage = engine.stage
    if stage == 0:
        return list(_plain_slices(engine))
    if stage == 3:
        return list(_stage3_slices(engine))
    return list(_stage12_slices(engine))


def slices_to_load(engine: Engine) -> list[OwnedSlice]:
    """What this rank must fill when it loads: its own slices, and in stage 0, where every rank holds all, whole parameters."""
    if engine.stage == 0:
        return [OwnedSlice(name, 0, parameter.numel(), parameter, 0) for name, parameter in _trained(engine)]
    return owned_slices(engine)


def trained_shapes(engine: Engine) -> dict[str, tuple[int, ...]]:
    """Shape of every trained parameter by name, on every rank."""
    return {name: tuple(getattr(parameter, "ds_shape", parameter.shape)) for name, parameter in _trained(engine)}


def optimizer_state(engine: Engine, owned: OwnedSlice) -> dict[str, torch.Tensor | float]:
    """The optimizer's state of the tensor `owned` lies in: moments of its shape and scalars; empty before the first step."""
    state = _base_optimizer(engine).state.get(owned.flat, {})
    return {key: value for key, value in state.items() if value is not None}


def state_of(engine: Engine, owned: OwnedSlice) -> dict[str, torch.Tensor | float]:
    """The same, as the optimizer will find it: to be written to."""
    state: dict[str, torch.Tensor | float] = _base_optimizer(engine).state[owned.flat]
    return state


@dataclass(frozen=True, slots=True)
class SliceState:
    """What is stored of one slice: views of live tensors by field (`master` and the moments), and the optimizer's scalars."""

    owned: OwnedSlice
    fields: dict[str, torch.Tensor]
    scalars: dict[str, float | int]
    """A float where the optimizer holds a tensor of one element, an int where it holds Python's own."""
    whole: dict[str, torch.Tensor]
    """State of the parameter that has no element for each of its own (Adafactor's sums of rows and columns); with the slice that holds its first element."""
    phase: int | None = None
    """Where in a block of codes the slice begins; None: its moments are no codes (ftcore.coded_moments)."""


def slice_states(engine: Engine) -> list[SliceState]:
    """The stored state of each of this rank's slices, nothing copied. Raises CheckpointError for state that slices can't carry."""
    return [_slice_state(engine, owned) for owned in owned_slices(engine)]


def _slice_state(engine: Engine, owned: OwnedSlice) -> SliceState:
    fields: dict[str, torch.Tensor] = {MASTER: owned.view(owned.flat)}
    scalars: dict[str, float | int] = {}
    whole: dict[str, torch.Tensor] = {}
    state = optimizer_state(engine, owned)
    if is_coded(state):
        fields |= coded_fields(state, owned.offset, owned.numel)
        return SliceState(owned, fields, {"step": state["step"]}, whole, owned.offset % BLOCK)
    for key, value in state.items():
        if not torch.is_tensor(value):
            scalars[key] = value
        elif value.dim() == 0:
            scalars[key] = float(value)
        elif value.shape == owned.flat.shape and value.dtype in FLOATING:
            fields[key] = owned.view(value)
        elif engine.stage == 0 and value.dtype in FLOATING:
            if owned.start == 0:
                whole[key] = value.detach()
        else:
            raise CheckpointError(
                f"the optimizer's {key} of {owned.name} holds {value.numel()} elements of type {value.dtype} for {owned.flat.numel()} parameters: "
                "such state can't be cut into slices",
                where="optimizer",
                fix="use optimizer.type adamw or sgd",
            )
    return SliceState(owned, fields, scalars, whole)


def require_carriable(engine: Engine) -> None:
    """Raises CheckpointError, before anything is trained, when the engine's state can't be stored free of world size and stage."""
    optimizer, problems = engine.optimizer, []
    if getattr(optimizer, "swap_optimizer", False):
        problems.append("the optimizer's state lies on NVMe, where slices of it can't be read")
    if getattr(optimizer, "round_robin_gradients", False):
        problems.append("round_robin_gradients deals parameters out in another order than the one slices are found by")
    if problems:
        raise CheckpointError("; ".join(problems), where="optimizer", fix="use offload_optimizer none or cpu, and leave round_robin_gradients out")


def loss_scale_state(engine: Engine) -> dict[str, float]:
    """The dynamic loss scale of fp16 and its counters, the same on every rank; empty where there is none."""
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    return {key: float(getattr(scaler, key)) for key in LOSS_SCALE_FIELDS} if getattr(scaler, "dynamic", False) else {}


def set_loss_scale_state(engine: Engine, state: dict[str, float]) -> None:
    """Restores what `loss_scale_state` gave; state of a run without fp16, or for one, is left out."""
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    if getattr(scaler, "dynamic", False):
        for key, value in state.items():
            setattr(scaler, key, value if key == "cur_scale" else int(value))


def prepare_state(engine: Engine, owned: OwnedSlice, moments: list[str], scalars: dict[str, float | int]) -> None:
    """Makes room for `moments` in a fresh optimizer and sets its scalars (AdamW's step)."""
    state = _base_optimizer(engine).state[owned.flat]
    for key in moments:
        if key not in state or state[key] is None:
            state[key] = torch.zeros_like(owned.flat.detach())
    for key, value in scalars.items():
        # A fused optimizer keeps its step count where its parameters are; an int is one that the optimizer counts in Python.
        state[key] = value if isinstance(value, int) else torch.tensor(value, dtype=torch.float32, device=owned.flat.device)


def prepare_codes(engine: Engine, owned: OwnedSlice) -> dict[str, torch.Tensor | float]:
    """A fresh optimizer's state with codes for the tensor that `owned` lies in, to be filled; the one that is there after the first call for it."""
    state = _base_optimizer(engine).state[owned.flat]
    if not is_coded(state):
        state.update(fresh_state(owned.flat.detach()))
    return state


@torch.no_grad()
def publish_masters(engine: Engine) -> None:
    """Carries fp32 masters that were written by hand into the weights that the forward pass uses, on every rank."""
    optimizer = engine.optimizer
    if engine.stage in (1, 2):
        optimizer.update_lp_params()
    elif engine.stage == 3:
        for sub_group in range(len(optimizer.fp32_partitioned_groups_flat)):
            optimizer._reassign_or_swap_out_partitioned_parameters(sub_group)
        persistent = optimizer.persistent_parameters
        if persistent:
            # These stay gathered between steps: let go of the stale copies before gathering again.
            persistent[0].partition(persistent)
            persistent[0].all_gather(persistent)


def _trained(engine: Engine) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, parameter) for name, parameter in engine.module.named_parameters() if parameter.requires_grad)


def _base_optimizer(engine: Engine) -> torch.optim.Optimizer:
    return engine.optimizer.optimizer if engine.stage else engine.optimizer


def _share_of_rank(numel: int, engine: Engine) -> tuple[int, int]:
    """Start and length of this rank's 1/W of `numel` elements."""
    each = -(-numel // engine.ranks.world_size)
    start = min(numel, each * engine.ranks.rank)
    return start, min(numel, start + each) - start


def _plain_slices(engine: Engine) -> Iterator[OwnedSlice]:
    for name, parameter in _trained(engine):
        start, numel = _share_of_rank(parameter.numel(), engine)
        if numel:
            yield OwnedSlice(name, start, numel, parameter, start)


def _stage12_slices(engine: Engine) -> Iterator[OwnedSlice]:
    optimizer = engine.optimizer
    names = {id(parameter): name for name, parameter in _trained(engine)}
    groups = optimizer.bf16_groups if hasattr(optimizer, "bf16_groups") else optimizer.bit16_groups
    flats = optimizer.fp32_groups_flat_partition if hasattr(optimizer, "fp32_groups_flat_partition") else optimizer.single_partition_of_fp32_groups
    for group, flat in zip(groups, flats, strict=True):
        for parameter in group:
            mapping = parameter._hp_mapping
            if mapping is not None:
                held, master = mapping.lp_fragment_address, mapping.get_hp_fragment_address()
                yield OwnedSlice(names[id(parameter)], held.start, held.numel, flat, master.start)


def _stage3_slices(engine: Engine) -> Iterator[OwnedSlice]:
    optimizer, rank = engine.optimizer, engine.ranks.rank
    for name, parameter in _trained(engine):
        group, offset, each = optimizer.grad_position[optimizer.get_param_id(parameter)]
        start = rank * each
        numel = min(each, parameter.ds_numel - start)
        if numel > 0:
            yield OwnedSlice(name, start, numel, optimizer.fp32_partitioned_groups_flat[group], offset)
