"""The safetensors format, written by us: 8 bytes of header length, a JSON header, then the tensors' bytes end to end.

The library's own writer wants whole tensors that share no storage, and gives no digest; ours takes the bytes as they come.
Format: https://github.com/huggingface/safetensors#format. Order and padding are the library's, so that files are equal byte for byte.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import torch

ALIGNMENT = 8
"""Bytes; the data begins at a multiple of it."""
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


def in_file_order(entries: Iterable[TensorEntry]) -> list[TensorEntry]:
    """Widest type first, so that every tensor is aligned to its own type, then by name."""
    return sorted(entries, key=lambda entry: (-entry.dtype.itemsize, entry.name))


def render_header(ordered: Iterable[TensorEntry]) -> bytes:
    """What stands before the data of these tensors, whose bytes follow in this order.

    Raises ValueError for a type that the format has no name for.
    """
    header: dict[str, dict[str, object]] = {}
    position = 0
    for entry in ordered:
        if entry.dtype not in DTYPES:
            raise ValueError(f"{entry.name}: safetensors files hold no {entry.dtype}")
        header[entry.name] = {"dtype": DTYPES[entry.dtype], "shape": list(entry.shape), "data_offsets": [position, position + entry.bytes]}
        position += entry.bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
