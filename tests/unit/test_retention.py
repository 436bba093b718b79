"""Which checkpoints stay: what was just written always, damaged ones aside (F04, F07)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ftcore.checkpoint.layout import broken, newest_first
from ftcore.checkpoint.manifest import FileEntry, Manifest, read_manifest
from ftcore.checkpoint.retention import KEPT_BROKEN, best_of, prune, set_aside, set_aside_newer
from ftcore.spec.errors import CheckpointError


def make_folder(checkpoints: Path, name: str, *, update: int | None = None, files: int = 5, metric: float | None = None) -> Path:
    """A checkpoint of one rank whose manifest is sound, unless it says another update or lists fewer files."""
    path = checkpoints / name
    path.mkdir()
    listed = ("cursor.json", "buffers.safetensors", "rank_0/state.safetensors", "rank_0/index.json", "rank_0/rng.json")[:files]
    Manifest(
        update=int(name.partition("_")[2]) if update is None else update,
        world_size=1,
        zero_stage=2,
        precision="fp32",
        optimizer="adamw",
        base={"name": "m", "revision": "", "digest": "d"},
        parameters={"w": (2, 2)},
        versions={},
        files=tuple(FileEntry(path=file, bytes=0, digest="") for file in listed),
        metric=metric,
    ).write(path)
    return path


def names(checkpoints: Path) -> set[str]:
    return {path.name for path in checkpoints.iterdir()}


def test_retention_is_numeric(tmp_path: Path) -> None:
    """F04: 9000 ... 10000, keep 10: the newest stays. Folders with other names are not ours."""
    newest = [make_folder(tmp_path, f"update_{update:08d}") for update in range(9000, 10001, 100)][-1]
    (tmp_path / "update_00009950.partial").mkdir()
    (tmp_path / "update_00008900.removed").mkdir()
    (tmp_path / "mine").mkdir()
    removed = prune(newest, keep=10)
    assert {path.name for path in removed} == {"update_00009000", "update_00009950.partial"}
    assert newest_first(tmp_path)[0] == newest and not list(tmp_path.glob("*.removed"))
    assert (tmp_path / "mine").is_dir()
    assert prune(newest, keep=0) and newest_first(tmp_path) == [newest]


@pytest.mark.parametrize("keep", [1, 2, 10])
def test_what_was_just_written_is_never_the_one_to_go(keep: int, tmp_path: Path) -> None:
    """Folders that are newer, or have no sound manifest, push nothing out, whatever their number: they are set aside."""
    committed, earlier = make_folder(tmp_path, "update_00000008"), make_folder(tmp_path, "update_00000004")
    make_folder(tmp_path, "update_00000099")
    (tmp_path / "update_00000007").mkdir()
    make_folder(tmp_path, "update_000000008")
    assert prune(committed, keep=keep) == ([earlier] if keep == 1 else [])
    aside = {"update_00000099.broken", "update_00000007.broken", "update_000000008.broken"}
    assert names(tmp_path) == {committed.name, *aside} | ({earlier.name} if keep > 1 else set())


def test_a_damaged_number_is_reached_again_and_again(tmp_path: Path) -> None:
    """2 whole, 8 damaged; 4, 6, 8 and 10 are saved with a limit of 1, and 8 is found damaged once more."""
    for _ in range(2):
        found, damaged = make_folder(tmp_path, "update_00000002"), make_folder(tmp_path, "update_00000008")
        (damaged / "manifest.json").write_text("{")
        set_aside_newer(found)
        assert names(tmp_path) == {found.name, "update_00000008.broken"}
        for update in (4, 6, 8, 10):
            committed = make_folder(tmp_path, f"update_{update:08d}")
            prune(committed, keep=1)
            assert names(tmp_path) == {committed.name, "update_00000008.broken"}
        shutil.rmtree(committed)
    assert (tmp_path / "update_00000008.broken" / "manifest.json").read_text() == "{"


def test_only_the_last_damaged_ones_stay(tmp_path: Path) -> None:
    """By when they were set aside, not by number."""
    for age, number in enumerate([90, 80, 5, 70, 6], start=1):
        set_aside(make_folder(tmp_path, f"update_{number:08d}"))
        os.utime(tmp_path / f"update_{number:08d}.broken", (age, age))
    committed = make_folder(tmp_path, "update_00000010")
    assert {path.name for path in prune(committed, keep=1)} == {"update_00000090.broken", "update_00000080.broken"}
    assert [path.name for path in broken(tmp_path)] == ["update_00000006.broken", "update_00000070.broken", "update_00000005.broken"]
    assert len(broken(tmp_path)) == KEPT_BROKEN


def test_a_clock_that_went_backwards_decides_nothing(tmp_path: Path) -> None:
    """Folders set aside before, when the clock stood in the year 2100; checkpoints older by time and newer by number."""
    future = 4_102_444_800
    for number in (1, 2, 3):
        set_aside(make_folder(tmp_path, f"update_{number:08d}"))
        os.utime(tmp_path / f"update_{number:08d}.broken", (future + number, future + number))
    set_aside(make_folder(tmp_path, "update_00000004"))
    assert [path.name for path in broken(tmp_path)] == [f"update_{number:08d}.broken" for number in (4, 3, 2, 1)]
    older, newer, committed = (make_folder(tmp_path, f"update_{number:08d}") for number in (10, 20, 30))
    os.utime(older, (future, future))
    os.utime(committed, (1, 1))
    removed = prune(committed, keep=2)
    assert set(removed) == {older, tmp_path / "update_00000001.broken"} and newest_first(tmp_path) == [committed, newer]


def test_the_best_one_is_never_removed(tmp_path: Path) -> None:
    """The lowest metric, the earliest of equal ones; damaged, newer and unmeasured checkpoints don't count."""
    metrics = {2: 3.0, 4: 1.0, 6: 1.0, 8: None, 10: 2.0, 12: 0.1, 14: 0.2}
    folders = {update: make_folder(tmp_path, f"update_{update:08d}", metric=metric) for update, metric in metrics.items()}
    (folders[12] / "manifest.json").write_text("{")
    assert best_of(folders[10]) == folders[4] and best_of(folders[2]) == folders[2]
    shutil.rmtree(folders[14])
    prune(folders[10], keep=1, best=folders[4])
    assert newest_first(tmp_path) == [folders[10], folders[4]]
    assert best_of(make_folder(tmp_path, "update_00000099")) == folders[4]
    shutil.rmtree(folders[4])
    shutil.rmtree(folders[10])
    assert best_of(tmp_path / "update_00000099") is None


def test_deleting_what_is_gone_already_is_no_failure(tmp_path: Path) -> None:
    """F07: another process deleted the same folder; one that stands half deleted is cleared."""
    gone, committed = make_folder(tmp_path, "update_00000002"), make_folder(tmp_path, "update_00000004")
    (tmp_path / "update_00000001.removed" / "rank_0").mkdir(parents=True)
    gone.rename(tmp_path / "update_00000002.removed")
    assert prune(committed, keep=1) == []
    assert names(tmp_path) == {committed.name}


def test_a_folder_that_cant_be_set_aside_stops_no_resume(tmp_path: Path) -> None:
    found, damaged = make_folder(tmp_path, "update_00000002"), make_folder(tmp_path, "update_00000008")
    (tmp_path / "update_00000008.broken").write_text("in the way")
    set_aside_newer(found)
    assert newest_first(tmp_path) == [damaged, found]
    with pytest.raises(OSError, match="Not a directory"):
        prune(found, keep=1)
    assert newest_first(tmp_path) == [damaged, found]


@pytest.mark.parametrize(
    ("update", "files", "reason"),
    [(2, 5, "the manifest is of update 2, which this folder's name does not say"), (6, 3, "the manifest does not list rank_0/index.json, rank_0/rng.json")],
)
def test_a_copy_or_an_incomplete_manifest_is_damage(update: int, files: int, reason: str, tmp_path: Path) -> None:
    assert read_manifest(make_folder(tmp_path, "update_00000004")).parameters == {"w": (2, 2)}
    with pytest.raises(CheckpointError, match=reason):
        read_manifest(make_folder(tmp_path, "update_00000006", update=update, files=files))
