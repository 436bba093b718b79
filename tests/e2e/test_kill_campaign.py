"""Sixty kills at random moments, each followed by a resume: the end is the unbroken run's, bit for bit."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.e2e.kill_harness import Campaign, Given, chosen_seed
from tests.ranks.small_model import save_small_llama, write_uneven_samples
from tests.ranks.specs import make_spec, with_section

KILLS, UPDATES, SAVE_EVERY = 60, 24, 2


def given(tmp_path: Path) -> Given:
    """A run on two ranks with a save every second update, of which the last three stay."""
    write_uneven_samples(tmp_path / "samples.arrow")
    source = save_small_llama(tmp_path / "model")
    spec = with_section(make_spec(2, updates=UPDATES, save_steps=SAVE_EVERY), "checkpoint", save_total_limit=3)
    return Given(folder=tmp_path / "runs", spec=spec, world_size=2, source=source, samples=str(tmp_path / "samples.arrow"))


def test_every_resume_is_bit_equal(tmp_path: Path) -> None:
    seed = chosen_seed()
    tally = Campaign(given(tmp_path), seed=seed).run(KILLS)
    assert tally.mismatches == [], f"seed {seed}"
    assert tally.kills.total() == KILLS and min(tally.kills[doing] for doing in ("loading", "training", "saving")) >= 3, (seed, tally)
    assert tally.single >= 3


def test_damaged_checkpoints_are_passed_over(tmp_path: Path) -> None:
    seed = chosen_seed()
    tally = Campaign(given(tmp_path), seed=seed, damages=True).run(8)
    assert tally.mismatches == [], f"seed {seed}"
