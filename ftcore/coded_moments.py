"""Moments in 8 bits, as bitsandbytes holds them, cut into slices and put together again.

A flat tensor of N moments is held as N codes of one byte, a scale (fp32) for each block of 256, and a map of 256 values:
moment = map[code] · scale of its block. A slice that begins inside a block keeps the whole block's scale, and how far in it begins: its phase.
Source: bitsandbytes 0.50.2, optim/optimizer.py (Optimizer2State.init_state) and functional.py (quantize_blockwise).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

BLOCK = 256
"""Moments that share a scale."""
SCALES = {"state1": "absmax1", "state2": "absmax2"}
"""Field of the codes -> that of their scales."""
MAPS = {"state1": "qmap1", "state2": "qmap2"}
IS_SIGNED = {"state1": True, "state2": False}


def value_map(field: str) -> torch.Tensor:
    """bitsandbytes' map of codes to values, ascending, fp32 [256]; that of second moments begins at half its lowest value above 0, instead of at 0.

    Coded to the nearest value, as kernels do, a second moment below 1.6e-7 of its block's largest would be 0 beside a first moment that is not, which goes
    down to 5.5e-7: once the gradient is 0 (dropout, an expert without tokens), the element would move by its first moment over epsilon.
    """
    from bitsandbytes.functional import create_dynamic_map

    values: torch.Tensor = create_dynamic_map(signed=IS_SIGNED[field])
    if not IS_SIGNED[field]:
        values[0] = values[1] / 2
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedPiece:
    """Some of a flat tensor's moments, as they were stored."""

    offset: int
    """Of the first one, in the flat tensor that is filled."""
    phase: int
    """Of the first one, in its block as it was stored."""
    fields: dict[str, torch.Tensor]
    """Codes, one for each moment, and the scales of all blocks that they lie in."""

    @property
    def numel(self) -> int:
        return self.fields["state1"].numel()

    @property
    def is_aligned(self) -> bool:
        """Whether its blocks lie in the flat tensor as they did where it was stored."""
        return self.offset % BLOCK == self.phase


def is_coded(state: dict[str, Any]) -> bool:
    """Whether an optimizer's state of a tensor holds codes."""
    return torch.is_tensor(state.get("state1")) and state["state1"].dtype == torch.uint8


def blocks_of(start: int, numel: int) -> slice:
    """The blocks that elements [start, start + numel) lie in."""
    return slice(start // BLOCK, -(-(start + numel) // BLOCK))


def coded_fields(state: dict[str, Any], offset: int, numel: int) -> dict[str, torch.Tensor]:
    """Views of the codes and scales of `numel` moments from `offset` on."""
    codes = {field: state[field].view(-1).narrow(0, offset, numel) for field in SCALES}
    return codes | {scales: state[scales][blocks_of(offset, numel)] for scales in SCALES.values()}


def fresh_state(stepped: torch.Tensor) -> dict[str, Any]:
    """State of a tensor that the optimizer steps: its moments are all 0. Without the count of steps."""
    device, state = stepped.device, dict[str, Any]()
    for field, scales in SCALES.items():
        values = value_map(field).to(device)
        state[field] = torch.full(stepped.shape, int(values.abs().argmin()), dtype=torch.uint8, device=device)
        state[scales] = torch.zeros(-(-stepped.numel() // BLOCK), dtype=torch.float32, device=device)
        state[MAPS[field]] = values
    return state


def fill(state: dict[str, Any], pieces: Sequence[CodedPiece]) -> bool:
    """Puts the pieces' moments into a fresh state. Returns whether they are exactly those that were stored.

    They are where no block of the flat tensor takes in blocks with different scales: always with the split they were stored from.
    Else all moments of the flat tensor are worked out in fp32 and coded again, each within half a step of its map.
    """
    exact = all(piece.is_aligned for piece in pieces) and not any(_conflict(state[scales], pieces, scales) for scales in SCALES.values())
    for field, scales in SCALES.items():
        if exact:
            for piece in pieces:
                state[field].view(-1).narrow(0, piece.offset, piece.numel).copy_(piece.fields[field])
                state[scales][blocks_of(piece.offset, piece.numel)] = piece.fields[scales].to(state[scales].device)
        else:
            _recode(state, pieces, field)
    return exact


def _conflict(scales: torch.Tensor, pieces: Sequence[CodedPiece], field: str) -> bool:
    seen = torch.full(scales.shape, torch.nan)
    for piece in pieces:
        part, own = seen[blocks_of(piece.offset, piece.numel)], piece.fields[field]
        if bool((~part.isnan() & (part != own)).any()):
            return True
        part.copy_(own)
    return False


def _recode(state: dict[str, Any], pieces: Sequence[CodedPiece], field: str) -> None:
    values = state[MAPS[field]]
    moments = torch.zeros(state[field].numel(), dtype=torch.float32, device=values.device)
    for piece in pieces:
        moments.narrow(0, piece.offset, piece.numel).copy_(decode(piece, field, values))
    encode(state, field, moments)


def encode(state: dict[str, Any], field: str, moments_N: torch.Tensor) -> None:
    """Puts moments, fp32 [N], into the state: each as the nearest value of the map times its block's largest.

    As bitsandbytes does on accelerators. Its code for CPUs rounds up to 2e-5 of the block's largest whatever is smaller, zeros too (0.50.2).
    """
    values, scales = state[MAPS[field]], state[SCALES[field]]
    blocks = torch.nn.functional.pad(moments_N, (0, scales.numel() * BLOCK - moments_N.numel())).view(-1, BLOCK)
    scales.copy_(blocks.abs().amax(1))
    shares = blocks / scales.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(1)
    codes = torch.bucketize(shares, (values[1:] + values[:-1]) / 2, out_int32=True).view(-1)
    state[field].view(-1).copy_(codes[: moments_N.numel()])


def decode(piece: CodedPiece, field: str, values: torch.Tensor) -> torch.Tensor:
    """The piece's moments, fp32 [numel]."""
    scales = piece.fields[SCALES[field]].to(values.device).unsqueeze(1).expand(-1, BLOCK).reshape(-1).narrow(0, piece.phase, piece.numel)
    return values.index_select(0, piece.fields[field].to(values.device, torch.int32)) * scales
