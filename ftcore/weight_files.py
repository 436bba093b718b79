"""What weight files say they hold, without reading the weights: names and shapes, and whether a file is whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ftcore.spec.errors import SpecError

WHERE = "model.model_name_or_path"
LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000
"""What the safetensors library itself accepts."""

Shapes = dict[str, tuple[int, ...]]


def safetensors_shapes(path: Path) -> Shapes:
    """Shape of each tensor of a safetensors file, from its header. Raises SpecError when the file is cut off or is none."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            header: dict[str, Any] = json.loads(file.read(min(length, MOST_HEADER_BYTES)))
        header.pop("__metadata__", None)
        shapes = {name: tuple(int(width) for width in entry["shape"]) for name, entry in header.items()}
        wanted = LENGTH_BYTES + length + max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise SpecError(f"{path} is damaged: its header can't be read", where=WHERE, fix="download or copy the model again") from error
    if wanted != size:
        raise SpecError(f"{path} is damaged: it has {size:,} bytes, its header says {wanted:,}", where=WHERE, fix="download or copy the model again")
    return shapes


def pickled_shapes(path: Path) -> Shapes:
    """Shape of each tensor of a pytorch_model.bin. Raises SpecError when torch can't read it."""
    import torch

    try:
        state = torch.load(path, map_location="meta", weights_only=True)
        return {name: tuple(value.shape) for name, value in state.items()}
    except Exception as error:  # the reader raises whatever a broken file leads it to
        raise SpecError(f"{path} is damaged: {type(error).__name__}: {error}", where=WHERE, fix="download or copy the model again") from error


def weight_shapes(files: list[Path]) -> Shapes:
    """Shape of each tensor of these weight files. Raises SpecError as the readers of a file do."""
    shapes: Shapes = {}
    for file in files:
        shapes |= safetensors_shapes(file) if file.suffix == ".safetensors" else pickled_shapes(file)
    return shapes


def tensors_that_do_not_fit(info: dict[str, Any]) -> str:
    """What transformers' loading information complains about, in words; empty when every weight of the model was there.

    transformers only warns, and trains the missing ones from random values.
    """
    missing = sorted(info["missing_keys"])
    other = sorted(
        f"{name} ({'x'.join(map(str, stored))} in the file, {'x'.join(map(str, built))} in the model)" for name, stored, built in info["mismatched_keys"]
    )
    parts = [f"the weight files lack {_first(missing)}"] if missing else []
    return "; ".join([*parts, *([f"other shapes than config.json says: {_first(other)}"] if other else [])])


def _first(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
