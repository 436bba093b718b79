"""Which checkpoint an export takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftcore.export_choice import BEST, NEWEST, choose_checkpoint
from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir
from tests.unit.test_checkpoints_verb import save
from tests.unit.test_cli import ftlaunch


def test_newest_best_and_by_number(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for update, metric in ((2, 1.0), (4, 0.5), (10000, 0.5)):
        save(run_dir, update, metric)
    chosen = {which: choose_checkpoint(run_dir, which).manifest.update for which in (NEWEST, BEST, "2")}
    assert chosen == {NEWEST: 10000, BEST: 4, "2": 2}


def test_what_is_there_is_said(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    with pytest.raises(CheckpointError, match="no whole checkpoint to export: none was saved"):
        choose_checkpoint(run_dir, NEWEST)
    with pytest.raises(CheckpointError, match="no checkpoint after update 7; there are none"):
        choose_checkpoint(run_dir, "7")
    save(run_dir, 2)
    with pytest.raises(CheckpointError, match="no checkpoint has a metric, so none is best; there are those of updates 2"):
        choose_checkpoint(run_dir, BEST)
    state = save(run_dir, 4, 0.25) / "rank_0/state.safetensors"
    with pytest.raises(CheckpointError, match=r"there is no checkpoint after update 3; there are those of updates 2, 4 \(metric 0.25\)"):
        choose_checkpoint(run_dir, "3")
    state.write_bytes(state.read_bytes().swapcase())
    for which in (BEST, "4"):
        with pytest.raises(CheckpointError, match=r"update_00000004 is damaged: rank_0/state\.safetensors has changed"):
            choose_checkpoint(run_dir, which)
    (run_dir.checkpoints / "update_00000002/manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="update_00000002 can't be taken: the manifest is damaged"):
        choose_checkpoint(run_dir, "2")


def test_both_options(tmp_path: Path) -> None:
    ended = ftlaunch(tmp_path, "export", "x", "--to", "y", "--best", "--update", "4")
    assert ended.returncode == 2 and "--best and --update are both given" in ended.stderr
