"""kill -9 of runs on a stream at any moment: resumed on as many ranks the end is the unbroken run's, bit for bit, and on others its losses and samples."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from ftcore.spec.run_dir import RunDir
from tests.e2e.kill_harness import Campaign, Given, chosen_seed
from tests.ranks.jobs import make_run, read_lines
from tests.ranks.small_model import save_small_llama
from tests.ranks.specs import with_section
from tests.ranks.stream_specs import stream_spec, write_stream

KILLS, UPDATES, SAVE_EVERY = 5, 24, 2


def given(tmp_path: Path) -> Given:
    """A run of several epochs on two ranks with a save every second update, of which the last three stay."""
    source = save_small_llama(tmp_path / "model")
    spec = stream_spec(write_stream(tmp_path / "data"), updates=UPDATES, save_steps=SAVE_EVERY, overlong="split")
    return Given(folder=tmp_path / "runs", spec=with_section(spec, "checkpoint", save_total_limit=3), world_size=2, source=source, samples="")


def losses(run: Given) -> list[float]:
    return [line["loss"] for line in read_lines(RunDir(run.folder).metrics)]


def ids_by_update(run: Given) -> dict[int, list[int]]:
    """Update -> sample ids over all ranks, sorted."""
    found: dict[int, list[int]] = {}
    for path in sorted((run.folder / "metrics").glob("rank_*.jsonl")):
        for line in read_lines(path):
            found.setdefault(line["update"], []).extend(sample for part in line["samples"] for sample in part)
    return {update: sorted(samples) for update, samples in found.items()}


def test_every_resume_is_exact(tmp_path: Path) -> None:
    """E06: no sample twice, none left out, whatever was read ahead of what was trained on."""
    seed = chosen_seed()
    campaign = Campaign(given(tmp_path), seed=seed)
    tally = campaign.run(KILLS)
    assert tally.mismatches == [] and tally.kills.total() == KILLS, f"seed {seed}"


def test_resume_on_other_ranks_after_a_kill(tmp_path: Path) -> None:
    """E07: two ranks, killed while training; three, killed; one to the end."""
    campaign = Campaign(given(tmp_path), seed=1)
    whole = campaign.fresh("whole")
    assert campaign.attempt(whole, None)
    broken = campaign.fresh("broken")
    assert not campaign.attempt(broken, "saving")
    seen = ids_by_update(broken)
    for world_size, moment in ((3, "saving"), (1, None)):
        broken = dataclasses.replace(broken, world_size=world_size)
        make_run(broken.folder, broken.spec, world_size)
        campaign.attempt(broken, moment)
    assert losses(broken) == pytest.approx(losses(whole), rel=1e-5)
    assert seen and all(ids_by_update(whole)[update] == samples for update, samples in seen.items())
    last = read_lines(RunDir(broken.folder).rank_metrics(0))[-1]
    assert last["update"] == UPDATES and sorted(sample for part in last["samples"] for sample in part) == ids_by_update(whole)[UPDATES]
