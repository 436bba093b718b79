"""Our safetensors files are the library's, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ftcore.checkpoint.writer import DTYPES, TensorEntry, in_file_order, render_header


def write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    entries = in_file_order(TensorEntry(name=name, dtype=value.dtype, shape=tuple(value.shape)) for name, value in tensors.items())
    data = b"".join(tensors[entry.name].contiguous().view(-1).view(torch.uint8).numpy().tobytes() for entry in entries)
    path.write_bytes(render_header(entries) + data)


TENSORS = {
    "master/model.layers.10.weight": torch.arange(12, dtype=torch.float32).view(3, 4),
    "master/model.layers.9.weight": torch.tensor([1.5]),
    "exp_avg/größe": torch.tensor([-0.0, float("inf")]),
    "half": torch.arange(3, dtype=torch.bfloat16),
    "codes": torch.arange(7, dtype=torch.uint8),
    "flags": torch.tensor([True, False, True]),
    "counts": torch.tensor([[2**40]]),
    "scalar": torch.tensor(3.0, dtype=torch.float64),
    "empty": torch.zeros(0, 4),
}


def test_equal_to_the_library_byte_for_byte(tmp_path: Path) -> None:
    write(tmp_path / "ours.safetensors", TENSORS)
    save_file(TENSORS, tmp_path / "theirs.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


@pytest.mark.parametrize("names", [[], ["a"], [f"parameter_{index}" for index in range(50)]])
def test_the_library_reads_it(names: list[str], tmp_path: Path) -> None:
    tensors = {name: torch.randn(index + 1) for index, name in enumerate(names)}
    write(tmp_path / "x.safetensors", tensors)
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == tensors.keys() and all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    if names:
        with safe_open(tmp_path / "x.safetensors", framework="pt") as file:
            assert torch.equal(file.get_slice(names[-1])[: len(names) // 2 + 1], tensors[names[-1]][: len(names) // 2 + 1])


def test_every_type_comes_back(tmp_path: Path) -> None:
    tensors = {str(dtype): torch.tensor([0, 1, 1]).to(dtype) for dtype in DTYPES}
    write(tmp_path / "x.safetensors", tensors)
    loaded = load_file(tmp_path / "x.safetensors")
    assert all(loaded[name].dtype == value.dtype and torch.equal(loaded[name], value) for name, value in tensors.items())


def test_a_type_without_a_name_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"x: safetensors files hold no torch\.complex64"):
        render_header([TensorEntry(name="x", dtype=torch.complex64, shape=(1,))])
