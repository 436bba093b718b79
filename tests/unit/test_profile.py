"""Recordings of a run that was stopped and went on lie beside each other."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import torch

from ftcore.dist import Ranks
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import ProfilingSection
from ftcore.train.profile import Profile


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
