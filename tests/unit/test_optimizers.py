"""Pieces of 8-bit moments put together, Muon's iteration, which parameters are stepped how, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from ftcore.checkpoint.room import state_bytes
from ftcore.coded_moments import BLOCK, MAPS, SCALES, CodedPiece, blocks_of, coded_fields, decode, fill, fresh_state
from ftcore.muon import advance_momentum, muon_update, orthogonalise
from ftcore.optimizers import optimizer_maker
from ftcore.spec.errors import SpecError
from ftcore.spec.sections import OptimizerSection
from ftcore.verification.tolerance import least_tolerance

State = dict[str, torch.Tensor]


def stepped(numel: int, *, seed: int = 0) -> State:
    """State of a real optimizer over `numel` parameters, after three steps with gradients of very different sizes."""
    from ftcore.adamw_8bit import GroupedAdamW8bit

    generator = torch.Generator().manual_seed(seed)
    parameter = torch.nn.Parameter(torch.randn(numel, generator=generator))
    optimizer = GroupedAdamW8bit([{"params": [parameter], "is_hidden": True}], lr=1e-2, min_8bit_size=0)
    for _ in range(3):
        parameter.grad = torch.randn(numel, generator=generator) * torch.logspace(-3, 0, numel)
        optimizer.step()
    return dict(optimizer.state[parameter])


def cut(state: State, edges: Sequence[int], *, to: int = 0) -> list[CodedPiece]:
    """The state's moments in slices between `edges`, for a flat tensor in which they begin at `to`."""
    pieces = []
    for start, end in pairwise(edges):
        fields = {key: value.clone() for key, value in coded_fields(state, start, end - start).items()}
        pieces.append(CodedPiece(offset=to + start, phase=start % BLOCK, fields=fields))
    return pieces


def moments(state: State, field: str) -> torch.Tensor:
    [piece] = cut(state, (0, state[field].numel()))
    return decode(piece, field, state[MAPS[field]])


@pytest.mark.parametrize("edges", [(0, 1000), (0, 300, 1000), (0, 1, 255, 257, 512, 999, 1000)])
def test_slices_of_codes_are_put_together_exactly(edges: tuple[int, ...]) -> None:
    state, fresh = stepped(1000), fresh_state(torch.zeros(1000))
    assert fill(fresh, cut(state, edges))
    assert all(torch.equal(fresh[key], state[key]) for key in (*SCALES, *SCALES.values(), *MAPS.values()))


def test_a_block_further_on_is_as_exact() -> None:
    """Whole blocks before it, another parameter's or padding, change no scale."""
    state, fresh = stepped(700), fresh_state(torch.zeros(4, 512))
    assert fill(fresh, cut(state, (0, 700), to=2 * BLOCK))
    assert torch.equal(moments(fresh, "state1")[512:1212], moments(state, "state1"))
    assert not moments(fresh, "state1")[:512].any() and not moments(fresh, "state1")[1212:].any()
    assert not moments(fresh, "state2")[:512].any() and not moments(fresh, "state2")[1280:].any()


@pytest.mark.parametrize("kept", [0.5, 1.0])
def test_moments_coded_to_the_nearest_value_move_no_element_far(kept: float) -> None:
    """Gradients over four decades in a block, then none at some elements: AdamW moves no element by more than about its learning rate."""
    from ftcore.adamw_8bit import GroupedAdamW8bit

    generator = torch.Generator().manual_seed(3)
    parameter = torch.nn.Parameter(torch.zeros(16 * BLOCK))
    optimizer = GroupedAdamW8bit([{"params": [parameter], "is_hidden": True}], lr=1e-3, min_8bit_size=0)
    sizes = 10 ** (-4 * torch.rand(parameter.shape, generator=generator))
    for update in range(12):
        before = parameter.detach().clone()
        gradient = torch.randn(parameter.shape, generator=generator) * sizes
        parameter.grad = gradient * (torch.rand(parameter.shape, generator=generator) < (kept if update < 8 else 0.0))
        optimizer.step()
        assert (parameter.detach() - before).abs().max() < 4e-3


def test_an_element_without_gradients_stays() -> None:
    from ftcore.adamw_8bit import GroupedAdamW8bit

    generator = torch.Generator().manual_seed(4)
    parameter = torch.nn.Parameter(torch.ones(3, 100))
    optimizer = GroupedAdamW8bit([{"params": [parameter], "is_hidden": True}], lr=1e-2, weight_decay=0.0, min_8bit_size=0)
    reached = torch.rand(parameter.shape, generator=generator) < 0.5
    for _ in range(5):
        parameter.grad = torch.randn(parameter.shape, generator=generator) * reached
        optimizer.step()
    assert torch.equal(parameter.detach() == 1, ~reached)


@pytest.mark.parametrize("to", [0, 100])
def test_blocks_that_do_not_fit_are_coded_again(to: int) -> None:
    """Two parameters whose blocks began elsewhere: in one block now, or shifted."""
    one, other, fresh = stepped(300), stepped(500, seed=1), fresh_state(torch.zeros(900))
    pieces = [*cut(one, (0, 300), to=to), *cut(other, (0, 500), to=to + 300)]
    if to == 0:
        # Both parts of block 1 say that they begin where a block does.
        pieces = [cut(one, (0, 300))[0], *cut(other, (44, 500), to=300 - 44)]
    assert not fill(fresh, pieces)
    for field, scales in SCALES.items():
        found = moments(fresh, field)
        wanted = torch.zeros(900)
        for piece in pieces:
            wanted[piece.offset : piece.offset + piece.numel] = decode(piece, field, fresh[MAPS[field]])
        # Neighbours in the map are 1/64 of the largest value apart at most, or of the decade that they are in.
        step = fresh[scales].repeat_interleave(BLOCK)[:900] / 64
        assert ((found - wanted).abs() <= step).all()
        assert (found - wanted).norm() < 0.02 * wanted.norm()


def test_blocks_that_elements_lie_in() -> None:
    assert [blocks_of(0, 256), blocks_of(255, 2), blocks_of(256, 1)] == [slice(0, 1), slice(0, 2), slice(1, 2)]


@pytest.mark.parametrize("shape", [(20, 24), (16, 64), (64, 16), (3, 8, 16)])
def test_muon_moves_along_orthogonal_matrices_of_one_size(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    matrix = torch.randn(shape, generator=generator, dtype=torch.float64)
    found = orthogonalise(matrix)
    assert found.dtype == torch.float32 and found.shape == matrix.shape
    singular = torch.linalg.svdvals(found)
    assert singular.min() > 0.5 and singular.max() < 1.3
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    assert ((u @ v - found).norm() / found.norm()) < 0.35
    update = muon_update(matrix.flatten(), shape)
    assert update.shape == (matrix.numel(),) and 0.1 < update.square().mean().sqrt() < 0.3
    if len(shape) == 3:
        assert torch.allclose(update.view(shape)[1].flatten(), muon_update(matrix[1].flatten(), shape[1:]), atol=1e-6)


def test_momentum_is_an_average_with_a_look_ahead() -> None:
    buffer, gradient = torch.tensor([1.0, 0.0]), torch.tensor([3.0, 2.0])
    ahead = advance_momentum(buffer, gradient, 0.75)
    assert buffer.tolist() == [1.5, 0.5] and ahead.tolist() == [1.875, 0.875] and gradient.tolist() == [3.0, 2.0]


def test_deepspeed_makes_adamw_and_sgd_itself() -> None:
    assert optimizer_maker(OptimizerSection(type="adamw")) is None and optimizer_maker(OptimizerSection(type="sgd")) is None


@pytest.mark.parametrize("kind", ["adamw_8bit", "adafactor", "muon"])
def test_the_others_are_made_as_the_spec_says(kind: str) -> None:
    make = optimizer_maker(OptimizerSection(type=kind, learning_rate=0.25, adam_beta2=0.5, adam_epsilon=0.125))
    assert make is not None
    [group] = make([{"params": [torch.nn.Parameter(torch.ones(2))], "weight_decay": 0.5, "is_hidden": False}]).param_groups
    assert group["lr"] == 0.25 and group["weight_decay"] == 0.5
    assert kind == "adafactor" or (group["betas"] == (0.9, 0.5) and group["eps"] == 0.125)


def test_adamw_8bit_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(SpecError, match="adamw_8bit needs the package bitsandbytes"):
        optimizer_maker(OptimizerSection(type="adamw_8bit"))


def test_bytes_of_state() -> None:
    """Of each element of a parameter, its fp32 master not counted."""
    found = {
        (kind, is_hidden): state_bytes((64, 16), OptimizerSection(type=kind, momentum=0.0), is_hidden=is_hidden)
        for kind in ("adamw", "adamw_8bit", "adafactor", "muon", "sgd")
        for is_hidden in (False, True)
    }
    assert [found["adamw", False], found["adamw_8bit", False], found["muon", False]] == [8, 8, 8]
    assert [found["adamw_8bit", True], found["muon", True]] == [2.03125, 4]
    assert found["adafactor", False] == 4 / 64 + 4 / 16 and found["sgd", False] == 0
    assert state_bytes((64,), OptimizerSection(type="adafactor"), is_hidden=False) == 4
    assert state_bytes((64,), OptimizerSection(type="sgd", momentum=0.9), is_hidden=False) == 4


def test_runs_with_moments_in_eight_bits_may_lie_as_far_apart_as_in_sixteen() -> None:
    assert least_tolerance("fp32", "adamw_8bit") == least_tolerance("bf16", "adamw")
    assert least_tolerance("bf16", "adamw_8bit") == least_tolerance("bf16", "adamw")
