"""The parameter gap of `ftlaunch verify-loss` on checkpoints written by hand, and what its comparison refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ftcore.checkpoint.manifest import FileEntry, Manifest
from ftcore.spec.errors import CheckpointError, TrainingError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.verification import VerificationDir
from ftcore.verification.parameters import parameter_gap
from ftcore.verify_loss import main
from tests.unit.test_verification import GAP, REFERENCE, request, write_records


def save(checkpoints: Path, update: int, values: dict[str, list[float]]) -> Path:
    """A checkpoint of one rank that holds these masters."""
    path = checkpoints / f"update_{update:08d}"
    (path / "rank_0").mkdir(parents=True)
    save_file({f"master/{name}": torch.tensor(value) for name, value in values.items()}, path / "rank_0" / "state.safetensors")
    index = {"slices": {name: [0, len(value)] for name, value in values.items()}, "scalars": {}}
    (path / "rank_0" / "index.json").write_text(json.dumps(index))
    fields = {
        "update": update,
        "world_size": 1,
        "zero_stage": 0,
        "precision": "fp32",
        "optimizer": "adamw",
        "base": {"name": "m", "revision": "", "digest": "d"},
    }
    names = ("cursor.json", "buffers.safetensors", "rank_0/state.safetensors", "rank_0/index.json", "rank_0/rng.json")
    files = tuple(FileEntry(path=name, bytes=1, digest="0") for name in names)
    Manifest(**fields, parameters={name: (len(value),) for name, value in values.items()}, versions={}, files=files).write(path)  # type: ignore[arg-type]
    return checkpoints


def test_gaps_are_relative_to_the_move(tmp_path: Path) -> None:
    reference = save(tmp_path / "reference", 0, {"a": [0.0, 0.0], "b": [1.0]})
    save(reference, 2, {"a": [3.0, 4.0], "b": [1.1]})
    same = parameter_gap(reference, save(tmp_path / "same", 2, {"a": [3.0, 4.0], "b": [1.1]}), 2)
    assert same.overall == same.largest == 0.0 and same.moved == pytest.approx(math.hypot(5.0, 0.1))
    other = parameter_gap(reference, save(tmp_path / "other", 2, {"a": [3.0, 4.5], "b": [1.2]}), 2)
    assert other.name == "b" and other.largest == pytest.approx(1.0, rel=1e-4)
    assert other.overall == pytest.approx(math.hypot(0.5, 0.1) / math.hypot(5.0, 0.1), rel=1e-4)
    bad = parameter_gap(reference, save(tmp_path / "bad", 2, {"a": [3.0, math.nan], "b": [1.2]}), 2)
    assert math.isnan(bad.overall) and bad.name == "a"


def test_a_parameter_that_must_not_move(tmp_path: Path) -> None:
    reference = save(tmp_path / "reference", 0, {"a": [1.0], "b": [1.0]})
    save(reference, 1, {"a": [2.0], "b": [1.0]})
    moved = parameter_gap(reference, save(tmp_path / "other", 1, {"a": [2.0], "b": [1.5]}), 1)
    assert moved.largest == math.inf and moved.name == "b" and moved.overall == pytest.approx(0.5)


def test_other_parameters_are_refused(tmp_path: Path) -> None:
    reference = save(tmp_path / "reference", 0, {"a": [1.0]})
    save(reference, 1, {"a": [2.0]})
    with pytest.raises(CheckpointError, match="does not train the parameters"):
        parameter_gap(reference, save(tmp_path / "other", 1, {"b": [2.0]}), 1)


def test_the_comparison_writes_its_result_or_says_that_there_is_none(tmp_path: Path) -> None:
    paths = VerificationDir(tmp_path)
    paths.request.write_text(request().to_json())
    (tmp_path / "gaps").mkdir()
    for split in request().splits:
        write_records(paths.run(split.name), REFERENCE)
        paths.gap(split.name).write_text(GAP.to_json())
    main(RunDir(tmp_path))
    assert json.loads(paths.result.read_text())["passed"] and "PASS" in paths.table.read_text()
    for split in request().others:
        paths.gap(split.name).write_text(json.dumps({"overall": 0.0, "largest": 0.0, "name": "a", "moved": 0.0}))
    with pytest.raises(TrainingError, match="moved no parameter"):
        main(RunDir(tmp_path))
