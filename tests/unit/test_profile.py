"""Recordings of a run that was stopped and went on lie beside each other."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from ftcore.dist import Ranks
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import ProfilingSection
from ftcore.train.profile import NamedRanges, Profile


def recorded(run_dir: RunDir, updates: range) -> None:
    """One launch that trains these updates."""
    profile = Profile(ProfilingSection(updates=3, start_update=2), run_dir, Ranks(rank=0, world_size=1, local_rank=0, device=torch.device("cpu")))
    for update in updates:
        profile.before(update)
        torch.ones(8, 8) @ torch.ones(8, 8)
        profile.after(update)
    profile.close()


def test_what_is_left_is_recorded_beside_what_there_is(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    recorded(run_dir, range(1, 4))
    recorded(run_dir, range(4, 8))
    recorded(run_dir, range(5, 8))
    names = ["rank_0.json.gz", "rank_0_from_4.json.gz"]
    assert sorted(path.name for path in run_dir.profile(0).parent.iterdir()) == names
    for name, count in zip(names, (2, 1), strict=True):
        with gzip.open(run_dir.profile(0).with_name(name), "rt") as file:
            assert [event.get("name") for event in json.load(file)["traceEvents"]].count("aten::mm") == count
    assert [json.loads(line)["path"] for line in run_dir.events.read_text().splitlines()] == [f"profile/{name}" for name in names]


def test_updates_and_phases_are_named_in_the_trace(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    profile = Profile(ProfilingSection(updates=2, start_update=2), run_dir, Ranks(rank=0, world_size=1, local_rank=0, device=torch.device("cpu")))
    for update in range(1, 4):
        profile.before(update)
        for phase in ("data_wait", "other", "forward", "backward", "other"):
            profile.phase(phase)
            torch.ones(8, 8) @ torch.ones(8, 8)
        profile.after(update)
        # Between two updates.
        profile.phase("checkpoint")
        profile.phase("other")
    profile.close()
    with gzip.open(run_dir.profile(0), "rt") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("name", "").startswith("ftlaunch: ")]
    events.sort(key=lambda event: (event["ts"], -event["dur"]))
    phases = [f"ftlaunch: {name}" for name in ("data_wait", "forward", "backward")]
    assert [event["name"] for event in events] == ["ftlaunch: update 2", *phases, "ftlaunch: checkpoint", "ftlaunch: update 3", *phases]
    for first, second in ((events[0], events[3]), (events[5], events[8])):
        assert first["ts"] <= second["ts"] and second["ts"] + second["dur"] <= first["ts"] + first["dur"]


def test_a_run_that_fails_in_a_recorded_update_leaves_what_it_has(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    profile = Profile(ProfilingSection(updates=9, start_update=1), run_dir, Ranks(rank=0, world_size=1, local_rank=0, device=torch.device("cpu")))
    profile.before(1)
    profile.phase("forward")
    profile.close()
    profile.close()
    profile.phase("other")
    assert run_dir.profile(0).exists()


def test_ranges_are_nvtx_ranges_too_where_there_is_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", told.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: told.append("pop"))
    ranges = NamedRanges(nvtx=True)
    ranges.enter("update 1")
    ranges.enter("forward")
    ranges.leave(1)
    ranges.enter("backward")
    ranges.leave(0)
    ranges.leave(0)
    assert told == ["ftlaunch: update 1", "ftlaunch: forward", "pop", "ftlaunch: backward", "pop", "pop"]
