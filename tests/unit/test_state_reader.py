"""Indexes and state files that don't fit each other are told as damage, whatever their digests say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ftcore.checkpoint.manifest import Manifest
from ftcore.checkpoint.read import StateReader
from ftcore.spec.errors import CheckpointError

GOOD = {"slices": {"a": [0, 4]}, "scalars": {"a": {"step": 3.0}}}


def opened(checkpoint: Path, index: str) -> StateReader:
    """A reader of a checkpoint of one rank that holds master and exp_avg of the parameter `a`."""
    folder = checkpoint / "rank_0"
    folder.mkdir()
    save_file({"master/a": torch.arange(4.0), "exp_avg/a": torch.zeros(4)}, folder / "state.safetensors")
    (folder / "index.json").write_text(index, encoding="utf-8")
    base = {"name": "small", "revision": "", "digest": "0"}
    parts = {"update": 3, "world_size": 1, "zero_stage": 2, "precision": "fp32", "optimizer": "adamw", "versions": {}, "files": ()}
    return StateReader.open(checkpoint, Manifest(base=base, parameters={"a": (2, 2)}, **parts))  # type: ignore[arg-type]


def test_a_right_index(tmp_path: Path) -> None:
    reader = opened(tmp_path, json.dumps(GOOD))
    assert torch.equal(reader.parameter("a"), torch.arange(4.0).view(2, 2)) and reader.moments("a") == ["exp_avg"]
    with pytest.raises(CheckpointError, match=r"rank 0's state lacks exp_avg_sq/a"):
        reader.read("exp_avg_sq", "a", 0, 4)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("{", "Expecting property name"),
        ("[]", "no attribute 'get'"),
        ("{}", "'slices'"),
        ('{"slices": {"a": [0]}, "scalars": {}}', "not enough values"),
        ('{"slices": {"a": [0, "4"]}, "scalars": {}}', r"the slice of a is \[0, 4\]"),
        ('{"slices": {"a": [0, 4]}, "phases": {"a": -1}, "scalars": {}}', "at -1 in its block"),
        ('{"slices": {"b": [0, 4]}, "scalars": {}}', "master/b is not in it"),
        ('{"slices": {"a": [0, 4]}, "whole": {"a": ["exp_avg_sq_row"]}, "scalars": {}}', "exp_avg_sq_row/a is not in it"),
        ('{"slices": {"a": [0, 4]}, "scalars": 3}', "not iterable"),
    ],
)
def test_a_wrong_index(index: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"rank 0's state can't be read: .*{words}"):
        opened(tmp_path, index)
