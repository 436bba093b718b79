"""What the run of a point left, as numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftcore.spec.errors import CheckpointError
from launcher.scaling.measure import Windows, read_measurement
from tests.unit.scaled import write_run

WINDOWS = Windows(warm_up=2, count=3, updates=2)


def test_the_warm_up_is_dropped_and_the_median_window_counts(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", [50.0, 9.0, 2.0, 2.0, 4.0, 4.0, 3.0, 3.0], [1000] * 8)
    found = read_measurement(run_dir, 2, WINDOWS)
    assert (found.updates, found.window_seconds, found.update_seconds) == (6, (2.0, 4.0, 3.0), 3.0)
    assert (found.tokens, found.supervised_tokens, found.spread) == (1000.0, 250.0, pytest.approx(2 / 3))
    assert found.peak_bytes == (800, 801) and len(found.losses) == 8 and found.row_tokens == 250.0


def test_phases_add_up_to_the_update(tmp_path: Path) -> None:
    found = read_measurement(write_run(tmp_path / "run", [9.0, 9.0, 2.0, 2.5, 4.0, 4.5, 3.0, 3.5], [900, 1000, 1100, 900, 1000, 1300, 800, 1000]), 2, WINDOWS)
    assert sum(found.phases.values()) == pytest.approx(found.update_seconds, rel=1e-9)
    assert found.phases["idle"] == pytest.approx(0.05 * found.update_seconds)
    assert found.late_rank == "rank 1 on vm, late in forward" and found.held_up_seconds == pytest.approx(0.125)


def test_windows_of_unlike_samples_are_made_alike(tmp_path: Path) -> None:
    # Seconds follow tokens exactly: every window is as fast as the others.
    tokens = [1000, 1000, 500, 700, 1000, 1200, 1600, 1000]
    found = read_measurement(write_run(tmp_path / "run", [held / 500 for held in tokens], tokens), 2, WINDOWS)
    assert found.window_seconds == pytest.approx([2.0, 2.0, 2.0]) and found.spread == pytest.approx(0.0)
    assert found.tokens / found.update_seconds == pytest.approx(500.0)


def test_an_even_number_of_windows(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", [1.0, 2.0, 5.0, 4.0], [1000] * 4)
    found = read_measurement(run_dir, 2, Windows(warm_up=0, count=4, updates=1))
    assert found.update_seconds == 3.0 and sum(found.phases.values()) == pytest.approx(3.0)


def test_an_update_takes_what_it_takes_its_ranks_on_average(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", [2.0] * 8, [1000] * 8)
    lines = [json.loads(text) for text in run_dir.rank_metrics(1).read_text().splitlines()]
    longer = [each | {"phase_seconds": 2.5, "phases": each["phases"] | {"forward": each["phases"]["forward"] + 0.5}} for each in lines]
    run_dir.rank_metrics(1).write_text("".join(json.dumps(each) + "\n" for each in longer))
    found = read_measurement(run_dir, 2, WINDOWS)
    assert found.update_seconds == pytest.approx(2.25) == sum(found.phases.values())


def test_a_run_without_phases(tmp_path: Path) -> None:
    found = read_measurement(write_run(tmp_path / "run", [2.0] * 8, [1000] * 8, with_phases=False), 2, WINDOWS)
    assert found.phases["data_wait"] == pytest.approx(0.1) and found.phases["other"] == pytest.approx(0.1) and found.late_rank == ""
    assert sum(found.phases.values()) == pytest.approx(found.update_seconds)


def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    assert set(read_measurement(write_run(tmp_path / "run", [2.0] * 8, [1000] * 8, loss="nan"), 2, WINDOWS).losses) == {None}


def test_a_run_that_is_too_short(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", [2.0] * 5, [1000] * 5)
    with pytest.raises(CheckpointError, match="5 updates in its metrics, 8 are needed"):
        read_measurement(run_dir, 2, WINDOWS)
    # A rank whose file is missing tells nothing of any update.
    with pytest.raises(CheckpointError, match="0 updates"):
        read_measurement(run_dir, 3, WINDOWS)
