"""Phases on real ranks: they are all of the time, the late rank is charged, on clocks that differ too, and measuring changes no number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftcore.attribution.told import ToldPhases
from ftcore.data.prepared import ModelSource
from tests.ranks.jobs import train_runs
from tests.ranks.phase_jobs import Loop, Planned, lines_of, phase_spec, train_planned, wait_by_turns
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section
from tests.ranks.staged_time import StagedTime

Small = tuple[ModelSource, str]
Trained = tuple[int, Path, list[list[Loop]]]
UPDATES = 6
WORLD_SIZES = (2, 4)
SAVE_S = 0.5


def plans() -> list[Planned]:
    """Every stage, with saves of which each takes longer than the machine may stand still; collectives beside the backward pass; a log every few updates."""
    each = [Planned(f"stage {stage}", phase_spec(stage, UPDATES, save_steps=3, eval_steps=2), "checkpoint", seconds=SAVE_S) for stage in range(4)]
    overlapped = with_section(phase_spec(2, UPDATES), "zero", overrides={"zero_optimization": {"overlap_comm": True}})
    return [*each, Planned("overlapped", overlapped), Planned("seldom", phase_spec(2, UPDATES, save_steps=2, logging_steps=5))]


@pytest.fixture(scope="module", params=WORLD_SIZES)
def trained(request: pytest.FixtureRequest, pool: RankPool, small: Small, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """(world size, folder of the runs, the loop of each rank and run)."""
    folder = tmp_path_factory.mktemp("phases")
    loops = pool.run(train_planned, request.param, str(folder), plans(), *small, logs=folder / "logs")
    return request.param, folder, loops


@pytest.mark.parametrize("name", [plan.name for plan in plans()])
def test_phases_are_all_of_the_time(name: str, trained: Trained) -> None:
    world_size, folder, _ = trained
    run = folder / name
    by_rank = [lines_of(run, f"metrics/rank_{rank}.jsonl") for rank in range(world_size)]
    for line in (line for lines in by_rank for line in lines):
        assert sum(line["phases"].values()) == pytest.approx(line["phase_seconds"], rel=1e-6)
        assert min(line["phases"].values()) >= -1e-9
        assert line["phases"]["forward"] > 0 < line["phases"]["backward"]
        assert line["phases"]["communication"] + line["phases"]["idle"] > 0
    for index, line in enumerate(lines_of(run, "metrics.jsonl")):
        parts = [lines[index] for lines in by_rank]
        assert {part["phase_updates"] for part in parts} == {line["phase_updates"]}
        for phase, seconds in line["phases"].items():
            assert seconds == pytest.approx(sum(part["phases"][phase] for part in parts) / world_size, abs=1e-9)
        idle, caused = sum(part["phases"]["idle"] for part in parts), sum(part["caused_idle_seconds"] for part in parts)
        assert idle == pytest.approx(caused, abs=1e-9), "what ranks wait is what others cause"
        if idle > 0:
            assert line["slowest"]["share"] == pytest.approx(max(part["caused_idle_seconds"] for part in parts) / (world_size - 1) / line["phase_seconds"])
        assert sum(part["cost"] for part in parts) > 0


def test_lines_and_the_end_cover_the_loop(trained: Trained) -> None:
    world_size, folder, loops = trained
    for index, plan in enumerate(plans()):
        run = folder / plan.name
        [end] = [event for event in lines_of(run, "events.jsonl") if event["event"] == "loop_end"]
        [start] = [event for event in lines_of(run, "events.jsonl") if event["event"] == "loop_start"]
        assert (start["update"], start["world_size"], end["update"]) == (0, world_size, UPDATES)
        covered = sum(line["phase_seconds"] for line in lines_of(run, "metrics.jsonl")) + end["phase_seconds"]
        assert covered == pytest.approx(sum(rank[index].seconds for rank in loops) / world_size, rel=1e-6)
        # What is left out is in what it computes, which takes no longer on a busy machine: there the loop's own wall would say little.
        assert sum(rank[index].outside_s for rank in loops) / world_size < max(0.02, 0.02 * covered)


def test_seldom_logged_updates_are_covered(trained: Trained) -> None:
    _, folder, _ = trained
    lines = lines_of(folder / "seldom", "metrics.jsonl")
    assert [(line["update"], line["phase_updates"]) for line in lines] == [(5, 5), (6, 1)]
    assert lines[0]["phases"]["checkpoint"] > 0


def test_evaluations_and_checkpoints_have_their_time(trained: Trained) -> None:
    """They lie between two logs: the line after them has them."""
    world_size, folder, _ = trained
    for stage in range(4):
        lines = lines_of(folder / f"stage {stage}", "metrics.jsonl")
        scored = [line["update"] for line in lines if line["phases"]["evaluation"] > 1e-4]
        assert scored == [1, 3, 5], "before the first, after updates 2 and 4; the last one is in loop_end"
        saved = max(lines, key=lambda line: line["phases"]["checkpoint"])
        assert saved["update"] == 4 and saved["phases"]["checkpoint"] >= SAVE_S / world_size


def test_measuring_changes_no_number(pool: RankPool, small: Small, tmp_path: Path) -> None:
    specs = [make_spec(stage, updates=UPDATES) for stage in (0, 2, 3)]
    runs = [(str(tmp_path / f"{stage} {on}"), with_section(spec, "logging", phases=on)) for stage, spec in enumerate(specs) for on in (True, False)]
    results = pool.run(train_runs, 2, runs, *small, logs=tmp_path / "logs")[0]
    for measured, plain in zip(results[::2], results[1::2], strict=True):
        assert measured.losses == plain.losses
        assert measured.norms == plain.norms
        assert all(bool((measured.final[name] == plain.final[name]).all()) for name in plain.final)
    lines = lines_of(tmp_path / "0 False", "metrics.jsonl")
    assert all(line["phases"] is None and line["slowest"] is None for line in lines)
    assert not [event for event in lines_of(tmp_path / "0 False", "events.jsonl") if event["event"] == "loop_end"]


@pytest.mark.parametrize("shift", [0.0, 5000.0])
def test_the_late_rank_is_charged(shift: float, pool: RankPool, tmp_path: Path) -> None:
    StagedTime.lay_out(tmp_path / "time")
    told: dict[str, ToldPhases] = pool.run(wait_by_turns, 2, str(tmp_path / "time"), shift, logs=tmp_path / "logs")[0]
    for name in ("all_reduce", "all_gather", "objects", "broadcast", "waits at once"):
        early, late = told[name].ranks
        assert late.caused_idle_seconds == pytest.approx(0.2), name
        assert early.phases["idle"] == pytest.approx(0.2), name
        assert late.late_phase == ("backward" if name == "waits at once" else "forward"), name
        assert early.caused_idle_seconds == 0, name
    _check_what_goes_on_beside(told)


def _check_what_goes_on_beside(told: dict[str, Any]) -> None:
    overlapped = told["overlapped"]
    assert all(each.phases["idle"] == 0 for each in overlapped.ranks), "who works until it is done waits for nobody"
    assert [each.phases["backward"] for each in overlapped.ranks] == pytest.approx([0.3, 0.3])
    beside = told["beside"]
    assert [each.phases["data_wait"] for each in beside.ranks] == pytest.approx([0.2, 0.2]), "readers that wait for each other are data that are waited for"
