"""The header of a GGUF file: its keys and tensors, without reading weights."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcore.spec.errors import SpecError
from launcher.memory.shape_config import WHERE

_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 8

COMMON = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
GPT2 = {"block_count": "n_layer", "context_length": "n_positions", "embedding_length": "n_embd", "attention.head_count": "n_head"}
WIDTH = {"attention.key_length": "head_dim"}
ROTARY_WIDTH = {"rope.dimension_count": "head_dim"}
EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
ARCHITECTURES: dict[str, tuple[str, dict[str, str]]] = {
    "llama": ("llama", COMMON | ROTARY_WIDTH),
    "mistral": ("mistral", COMMON | ROTARY_WIDTH),
    "qwen2": ("qwen2", COMMON),
    "qwen2moe": ("qwen2_moe", COMMON | EXPERTS),
    "qwen3": ("qwen3", COMMON),
    "qwen3moe": ("qwen3_moe", COMMON | WIDTH | EXPERTS),
    "phi3": ("phi3", COMMON),
    "gemma2": ("gemma2", COMMON | WIDTH),
    "gemma3": ("gemma3_text", COMMON | WIDTH),
    "starcoder2": ("starcoder2", COMMON),
    "gpt2": ("gpt2", GPT2),
}
"""general.architecture -> (model_type, key of the header -> key of config.json), as transformers' integrations/ggml.py converts them."""


@dataclass(slots=True)
class Header:
    """What stands before the weights."""

    keys: dict[str, Any] = field(default_factory=dict)
    """Single values; of lists only how long they are."""
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Name -> sizes, the fastest running first."""


def config_of_gguf(path: Path) -> dict[str, Any]:
    """What config.json of the converted model will say of its sizes. Raises SpecError for a file that is no GGUF file, or of a model not known here."""
    header = read_header(path)
    architecture = str(header.keys.get("general.architecture", ""))
    if architecture not in ARCHITECTURES:
        raise SpecError(
            f"{path.name} holds a model of type {architecture[:40]!r}, whose sizes are not known from its header alone",
            where=WHERE,
            fix=f"ftlaunch plan --exact builds the model and counts; known are {', '.join(ARCHITECTURES)}",
        )
    family, names = ARCHITECTURES[architecture]
    config = {mine: header.keys[f"{architecture}.{theirs}"] for theirs, mine in names.items() if f"{architecture}.{theirs}" in header.keys}
    vocabulary = header.tensors.get("token_embd.weight", (0,))[-1] or header.keys.get("tokenizer.ggml.tokens", 0)
    return {"model_type": family, **config, "vocab_size": vocabulary, "tie_word_embeddings": "output.weight" not in header.tensors}


def read_header(path: Path) -> Header:
    """Keys and tensors of a GGUF file of version 2 or 3. Raises SpecError when it is none, or is cut off."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).header()
    except OSError as error:
        raise SpecError(f"can't read {path}: {error.strerror}", where=WHERE, fix="check the path and its permissions") from error
    except (ValueError, struct.error, OverflowError) as error:
        reason = "it is cut off" if isinstance(error, struct.error) else error
        raise SpecError(f"{path} is no GGUF file that can be read: {reason}", where=WHERE, fix="download or copy the file again") from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def header(self) -> Header:
        """Everything up to the weights."""
        if self._data[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        self._at = 4
        version, tensors, keys = self._unpack("<I"), self._unpack("<Q"), self._unpack("<Q")
        if version not in (2, 3):
            raise ValueError(f"version {version}; 2 and 3 are read")
        found = Header()
        for _ in range(keys):
            name = self._text()
            found.keys[name] = self._value(self._unpack("<I"))
        for _ in range(tensors):
            name, dimensions = self._text(), self._unpack("<I")
            if dimensions > _MOST_DIMENSIONS:
                raise ValueError(f"tensor {name[:40]!r} has {dimensions} dimensions")
            found.tensors[name] = tuple(self._unpack("<Q") for _ in range(dimensions))
            self._at += 12  # its type and where its weights begin
        return found

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            inner, count = self._unpack("<I"), self._unpack("<Q")
            self._skip(inner, count)
            return count
        return self._unpack(self._format(kind))

    def _skip(self, kind: int, count: int) -> None:
        if kind == _ARRAY:
            raise ValueError("a list of lists")
        if kind != _STRING:
            self._at += struct.calcsize(self._format(kind)) * count
            return
        # A vocabulary has 10^5 entries, so no call for each.
        unpack, data, at = struct.Struct("<Q").unpack_from, self._data, self._at
        for _ in range(count):
            at += 8 + unpack(data, at)[0]
        self._at = at

    def _format(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise ValueError(f"a value of type {kind}")
        return _NUMBERS[kind]

    def _text(self) -> str:
        length = self._unpack("<Q")
        start, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise ValueError("it is cut off")
        return self._data[start : self._at].decode("utf-8")

    def _unpack(self, form: str) -> Any:
        value = struct.unpack_from(form, self._data, self._at)[0]
        self._at += struct.calcsize(form)
        return value
