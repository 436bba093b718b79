"""`ftlaunch checkpoints`: what is listed, what is found damaged, and what a prune removes and never removes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from ftcore.checkpoint.commit import tidy
from ftcore.checkpoint.digest import digest_of
from ftcore.checkpoint.manifest import FileEntry, Manifest
from ftcore.shelf import entries, plan_prune, remove
from ftcore.spec.run_dir import RunDir
from launcher.failure import resume_advice
from launcher.run_folder import locked, newest_checkpoint
from launcher.shelving import render_table, size
from tests.unit.local_launch import resolved_for
from tests.unit.test_cli import ftlaunch


def save(run_dir: RunDir, update: int, metric: float | None = None) -> Path:
    """A small whole checkpoint of one rank."""
    path = run_dir.checkpoints / f"update_{update:08d}"
    (path / "rank_0").mkdir(parents=True)
    files = []
    for name in ("cursor.json", "buffers.safetensors", "rank_0/state.safetensors", "rank_0/index.json", "rank_0/rng.json"):
        content = json.dumps({"epoch": update // 4, "of": name}).encode()
        (path / name).write_bytes(content)
        files.append(FileEntry(path=name, bytes=len(content), digest=digest_of(content)))
    base = {"name": "m", "revision": "", "digest": "d"}
    fields = {"update": update, "world_size": 1, "zero_stage": 2, "precision": "fp32", "optimizer": "adamw"}
    Manifest(**fields, base=base, parameters={}, versions={}, files=tuple(files), metric=metric).write(path)
    return path


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Five checkpoints, the best one old, the newest one damaged, and every kind of leftover."""
    run_dir = RunDir(tmp_path / "run")
    for update, metric in ((2, 1.5), (4, 1.0), (6, 1.2), (8, 1.3), (10000, 0.1)):
        save(run_dir, update, metric)
    state = run_dir.checkpoints / "update_00010000/rank_0/state.safetensors"
    state.write_bytes(state.read_bytes().replace(b"0", b"1"))
    for name in ("update_00000012.partial", "update_00000003.broken", "update_00000001.removed"):
        (run_dir.checkpoints / name).mkdir()
    (run_dir.checkpoints / "latest").write_text("update_00010000\n")
    run_dir.resolved.write_text(resolved_for().to_json())
    return run_dir


def test_listing_reads_no_digest_and_verifying_does(run: RunDir) -> None:
    listed = entries(run.checkpoints, digests=False)
    assert [(entry.update, entry.state) for entry in listed[:2]] == [(10000, "whole"), (8, "whole")]
    read = {entry.name: entry for entry in entries(run.checkpoints, digests=True)}
    damaged = read["update_00010000"]
    assert damaged.state == "damaged" and "state.safetensors has changed" in damaged.wrong[0] and damaged.marks == ("named latest",)
    assert read["update_00000008"].marks == ("latest",) and read["update_00000008"].epoch == 2
    states = {name: entry.state for name, entry in read.items()}
    assert [states[f"update_{name}"] for name in ("00000012.partial", "00000003.broken", "00000001.removed")] == ["partial", "broken", "removed"]


def test_the_newest_whole_and_the_best_always_stay(run: RunDir) -> None:
    listed = entries(run.checkpoints, digests=True)
    assert [entry.update for entry in plan_prune(listed, keep=1, with_leftovers=False)] == [6, 2]
    assert plan_prune(listed, keep=9, with_leftovers=False) == []
    gone = plan_prune(listed, keep=2, with_leftovers=True)
    remove(run.checkpoints, gone)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        *("latest", "update_00000004", "update_00000006", "update_00000008", "update_00010000"),
    ]


def test_the_command_line(run: RunDir, tmp_path: Path) -> None:
    run.resolved.write_text("{damaged")
    ended = ftlaunch(tmp_path, "checkpoints", "ls", "run")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].split()[:3] == ["update", "epoch", "size"] and lines[1].split()[0] == "10000" and lines[2].split()[0] == "8"
    told = json.loads(ftlaunch(tmp_path, "checkpoints", "ls", "run", "--json").stdout)["checkpoints"]
    assert [entry["update"] for entry in told][:3] == [10000, 8, 6]
    ended = ftlaunch(tmp_path, "checkpoints", "verify", "run")
    assert ended.returncode == 5 and "1 of 5 checkpoints damaged: update_00010000" in ended.stderr and "verify" in ended.stdout
    assert ftlaunch(tmp_path, "checkpoints", "prune", "run").returncode == 5
    ended = ftlaunch(tmp_path, "checkpoints", "prune", "run", "--keep", "1", "--dry-run")
    assert ended.returncode == 0 and "would remove update_00000006" in ended.stdout and len(list(run.checkpoints.iterdir())) == 9
    run.resolved.write_text(resolved_for().to_json())
    with locked(run):
        assert "in use by another launch" in ftlaunch(tmp_path, "checkpoints", "prune", "run").stderr
    ended = ftlaunch(tmp_path, "checkpoints", "prune", "run", "--leftovers", "--json")
    assert json.loads(ended.stdout)["removed"][-3:] == ["update_00000012.partial", "update_00000003.broken", "update_00000001.removed"]
    assert not (run.checkpoints / "update_00000002").exists() and (run.checkpoints / "update_00000004").is_dir()


def test_nothing_there(tmp_path: Path) -> None:
    assert "there is no folder x" in ftlaunch(tmp_path, "checkpoints", "ls", "x").stderr
    ended = ftlaunch(tmp_path, "checkpoints", "verify", ".")
    assert ended.returncode == 5 and "holds neither resolved.json nor checkpoints" in ended.stderr
    (tmp_path / "resolved.json").write_text(resolved_for().to_json())
    assert ftlaunch(tmp_path, "checkpoints", "ls", ".").stdout == "no checkpoints\n"
    assert "nothing to remove" in ftlaunch(tmp_path, "checkpoints", "prune", ".").stdout


def test_a_folder_that_can_not_be_removed(run: RunDir, tmp_path: Path) -> None:
    # A mount point and an immutable file need root; a folder whose own name is taken by a file needs nobody's leave.
    (run.checkpoints / "update_00000006.removed").write_text("a file")
    ended = ftlaunch(tmp_path, "checkpoints", "prune", "run", "--keep", "1")
    assert ended.returncode == 5 and "can't remove a checkpoint" in ended.stderr and (run.checkpoints / "update_00000006").is_dir()


def test_advice_when_every_checkpoint_is_damaged(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    assert "begins at the first update" in resume_advice(run_dir, "R")
    (run_dir.checkpoints / "update_00000004.broken").mkdir(parents=True)
    assert "every checkpoint is damaged: a resume will refuse; ftlaunch checkpoints verify" in resume_advice(run_dir, "R")
    save(run_dir, 6)
    assert resume_advice(run_dir, "R") == "R   (goes on after update 6)"
    os.truncate(run_dir.checkpoints / "update_00000006/cursor.json", 1)
    assert "every checkpoint is damaged" in resume_advice(run_dir, "R")


def test_sizes_and_rows() -> None:
    assert [size(count) for count in (0, 999, 1500, 2.5e9, 4e15)] == ["0 B", "999 B", "1.5 kB", "2.5 GB", "4000.0 TB"]
    entry = {"name": "update_00000002.partial", "update": None, "epoch": None, "bytes": 10, "world_size": None, "zero_stage": None, "time": 0.0}
    table = render_table([{**entry, "metric": None, "marks": [], "state": "partial", "wrong": ["the save did not finish"]}])
    assert table.splitlines()[1].split() == ["update_00000002.partial", "-", "10", "B", "-", "-", "-", "-", "partial"]
    assert table.splitlines()[2] == "    the save did not finish"


@pytest.mark.parametrize("name", ["latest", "update_00000008/cursor.json", "update_00000008/manifest.json"])
def test_a_pipe_in_a_files_place_keeps_nobody_waiting(name: str, run: RunDir) -> None:
    (run.checkpoints / name).unlink()
    os.mkfifo(run.checkpoints / name)
    states = {entry.name: entry.state for entry in entries(run.checkpoints, digests=True)}
    assert states["update_00000006"] == "whole"
    assert (states["update_00000008"] == "damaged") == (name != "latest")
    newest = newest_checkpoint(run)
    assert newest is not None and newest.name == "update_00010000"
    shutil.rmtree(newest)
    newest = newest_checkpoint(run)
    assert newest is not None and newest.name == ("update_00000008" if name == "latest" else "update_00000006")


def test_what_was_written_over_the_pointer_to_the_best_ends_no_save(run: RunDir) -> None:
    (run.checkpoints / "best").write_bytes(b"\xff\xfe")
    assert tidy(run.checkpoints / "update_00000008", keep=5) == ""
    assert (run.checkpoints / "best").read_text() == "update_00000004\n"
