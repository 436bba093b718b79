"""Read slices back, memory-mapped, whatever number of ranks and stage wrote them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ftcore.checkpoint import layout
from ftcore.checkpoint.manifest import Manifest
from ftcore.coded_moments import BLOCK, SCALES, CodedPiece, blocks_of
from ftcore.engine_fields import MASTER
from ftcore.spec.errors import CheckpointError

_FIX = "resume from an older checkpoint"


@dataclass(frozen=True, slots=True)
class _Piece:
    rank: int
    start: int
    numel: int
    phase: int | None
    """Where in a block of codes it begins; None: its moments are no codes."""


@dataclass(slots=True)
class StateReader:
    """The trained state of one checkpoint, by parameter and element range."""

    checkpoint: Path
    manifest: Manifest
    scalars: dict[str, dict[str, float]] = field(default_factory=dict)
    """Parameter -> the optimizer's scalars (AdamW's step)."""
    whole: dict[str, list[str]] = field(default_factory=dict)
    """Parameter -> fields that are stored whole, in shapes of their own (Adafactor's sums of rows and columns)."""
    _pieces: dict[str, list[_Piece]] = field(default_factory=dict)
    _files: dict[int, Any] = field(default_factory=dict)
    _fields: dict[int, frozenset[str]] = field(default_factory=dict)

    @staticmethod
    def open(checkpoint: Path, manifest: Manifest) -> StateReader:
        """Reads the indexes; tensor data stays on disk. Raises CheckpointError when they are damaged."""
        reader = StateReader(checkpoint, manifest)
        for rank in range(manifest.world_size):
            folder = layout.rank_path(checkpoint, rank)
            try:
                reader._files[rank] = safe_open(folder / layout.STATE, framework="pt")
                reader._fields[rank] = frozenset(reader._files[rank].keys())
                reader._take_in(rank, json.loads((folder / layout.INDEX).read_text(encoding="utf-8")))
            except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
                raise CheckpointError(f"rank {rank}'s state can't be read: {error}", where=str(folder), fix=_FIX) from error
        return reader

    def _take_in(self, rank: int, index: dict[str, Any]) -> None:
        """Raises ValueError, KeyError, TypeError or AttributeError for what is no index of the rank's file."""
        phases, whole = index.get("phases", {}), index.get("whole", {})
        for name, (start, numel) in index["slices"].items():
            phase = phases.get(name)
            if not all(type(value) is int and value >= 0 for value in (start, numel, phase or 0)):
                raise ValueError(f"the slice of {name} is [{start}, {numel}], at {phase} in its block")
            self._pieces.setdefault(name, []).append(_Piece(rank, start, numel, phase))
        missing = sorted({f"{MASTER}/{name}" for name in index["slices"]} | {f"{key}/{name}" for name, keys in whole.items() for key in keys})
        missing = [key for key in missing if key not in self._fields[rank]]
        if missing:
            raise ValueError(f"{missing[0]} is not in it")
        self.scalars.update(index["scalars"])
        self.whole.update(whole)

    def _slice(self, rank: int, key: str) -> Any:
        """A stored tensor, to be cut; raises CheckpointError when the rank's file lacks it."""
        if key not in self._fields[rank]:
            raise CheckpointError(f"rank {rank}'s state lacks {key}", where=str(self.checkpoint), fix=_FIX)
        return self._files[rank].get_slice(key)

    def moments(self, name: str) -> list[str]:
        """Fields stored for each element of the parameter beside its master values (exp_avg, …); none where its moments are codes."""
        if self.is_coded(name):
            return []
        rank = self._pieces[name][0].rank
        stored = {key.split("/", 1)[0] for key in self._fields[rank] if key.split("/", 1)[1] == name}
        return sorted(stored - {MASTER, *self.whole.get(name, [])})

    def is_coded(self, name: str) -> bool:
        """Whether the parameter's moments are stored as codes."""
        return self._pieces[name][0].phase is not None

    def read_whole(self, field_name: str, name: str) -> torch.Tensor:
        """A field that is stored whole, in its shape, on the CPU."""
        key = f"{field_name}/{name}"
        rank = next(rank for rank, keys in self._fields.items() if key in keys)
        tensor: torch.Tensor = self._files[rank].get_tensor(key)
        return tensor

    def coded_pieces(self, name: str, start: int, numel: int, *, offset: int) -> list[CodedPiece]:
        """The coded moments of elements [start, start + numel), for a flat tensor in which the first lies at `offset`."""
        pieces = []
        for piece in self._pieces[name]:
            begin, end = max(start, piece.start), min(start + numel, piece.start + piece.numel)
            if begin >= end or piece.phase is None:
                continue
            from_block = piece.phase + begin - piece.start
            blocks, fields = blocks_of(from_block, end - begin), {}
            for codes, scales in SCALES.items():
                fields[codes] = self._slice(piece.rank, f"{codes}/{name}")[begin - piece.start : end - piece.start]
                fields[scales] = self._slice(piece.rank, f"{scales}/{name}")[blocks]
            pieces.append(CodedPiece(offset=offset + begin - start, phase=from_block % BLOCK, fields=fields))
        return pieces

    def read(self, field_name: str, name: str, start: int, numel: int) -> torch.Tensor:
        """Elements [start, start + numel) of one field of a parameter, 1-D on the CPU, in the type it was saved in (fp32).

        Raises CheckpointError when the checkpoint does not hold all of them.
        """
        parts: list[torch.Tensor] = []
        position = start
        for piece in sorted(self._pieces.get(name, []), key=lambda item: item.start):
            begin, end = max(position, piece.start), min(start + numel, piece.start + piece.numel)
            if begin == position and end > begin:
                stored = self._slice(piece.rank, f"{field_name}/{name}")
                parts.append(stored[begin - piece.start : end - piece.start])
                position = end
        if position != start + numel:
            raise CheckpointError(f"{name} has no elements from {position} on in field {field_name}", where=str(self.checkpoint), fix=_FIX)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def parameter(self, name: str) -> torch.Tensor:
        """The whole master value of a trained parameter in its shape, fp32 on the CPU."""
        shape = self.manifest.parameters[name]
        return self.read(MASTER, name, 0, int(torch.Size(shape).numel())).view(shape)
