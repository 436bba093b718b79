"""Where a run ends: the schedule at its last update whatever the number of ranks, early stopping also after a resume; and profiles of single updates."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import pytest

from ftcore import dist
from ftcore.batch.cursor import Cursor
from ftcore.checkpoint.commit import add_metric
from ftcore.checkpoint.layout import CURSOR
from ftcore.checkpoint.manifest import read_manifest
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource
from ftcore.run import build_engine, restore
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.train.loop import Trainer
from tests.ranks.jobs import make_job, make_run, read_lines
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section
from tests.ranks.test_resume import copy_at

Small = tuple[ModelSource, str]


def train_evaluated(rank: int, world_size: int, runs: list[tuple[str, Spec]], source: ModelSource, samples: str) -> list[Cursor]:
    """`jobs.train_runs` with the training rows as the evaluation set `eval`; the cursors at the end."""
    ranks = dist.start()
    cursors = []
    for folder, spec in runs:
        if rank == 0:
            make_run(Path(folder), spec, world_size)
        dist.barrier()
        job = dataclasses.replace(make_job(RunDir(Path(folder)), spec, source, samples), held_out={"eval": SampleSet.open(samples)})
        engine = build_engine(job, ranks)
        trainer = Trainer(engine, job, restore(engine, job))
        trainer.run()
        cursors.append(trainer.cursor)
        engine.deepspeed.destroy()
    dist.barrier()
    dist.stop()
    return cursors


@pytest.mark.parametrize("world_size", [1, 4])
def test_the_schedule_ends_with_the_run(world_size: int, pool: RankPool, small: Small, tmp_path: Path) -> None:
    """B16: the learning rate of update k is the same on any number of ranks, and its fall ends with the run's last update."""
    stable = with_section(make_spec(2, updates=8), "schedule", lr_scheduler_type="warmup_stable_decay", warmup_steps=2, decay_steps=4, decay_type="linear")
    linear = with_section(make_spec(2, updates=8), "schedule", lr_scheduler_type="linear", warmup_steps=0, min_lr_ratio=0.5)
    profiled = with_section(stable, "profiling", updates=2, start_update=3, ranks=(0,), memory=True)
    runs = [(str(tmp_path / "stable"), profiled), (str(tmp_path / "linear"), linear)]
    pool.run(train_evaluated, world_size, runs, *small, logs=tmp_path / "logs")
    factors = {"stable": (0, 1 / 2, 1, 1, 1, 3 / 4, 1 / 2, 1 / 4), "linear": [1 - update / 16 for update in range(8)]}
    for name, expected in factors.items():
        rates = [line["learning_rate"] for line in read_lines(tmp_path / name / "metrics.jsonl")]
        assert rates == pytest.approx([stable.optimizer.learning_rate * factor for factor in expected])
    run_dir = RunDir(tmp_path / "stable")
    with gzip.open(run_dir.profile(0), "rt") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"aten::mm", "[memory]"} <= names
    assert [path.name for path in run_dir.profile(0).parent.iterdir()] == ["rank_0.json.gz"] and not (tmp_path / "linear" / "profile").exists()
    assert [line["path"] for line in read_lines(run_dir.events) if line["event"] == "profile"] == ["profile/rank_0.json.gz"]


def stopping_spec(stage: int, patience: int) -> Spec:
    """Twelve updates, evaluated before the first and after every second one; no evaluation is better by 50."""
    spec = with_section(make_spec(stage, updates=12, save_steps=1), "checkpoint", metric_for_best_model="loss", save_async=False)
    return with_section(spec, "evaluation", eval_steps=2, early_stopping_patience=patience, early_stopping_threshold=50.0)


def test_early_stopping_counts_on_after_a_resume(pool: RankPool, small: Small, tmp_path: Path) -> None:
    spec = stopping_spec(2, patience=3)
    for cursor in pool.run(train_evaluated, 2, [(str(tmp_path / "whole"), spec)], *small, logs=tmp_path / "logs"):
        assert (cursor[0].next_update, cursor[0].evaluations_without_gain, cursor[0].measured_update) == (6, 3, 6)
    copy_at(tmp_path / "whole", tmp_path / "resumed", 5)
    for folder, world_size in (("resumed", 1), ("whole", 2)):
        ended = pool.run(train_evaluated, world_size, [(str(tmp_path / folder), spec)], *small, logs=tmp_path / f"logs_{folder}")[0][0]
        checkpoint = tmp_path / folder / "checkpoints" / "update_00000006"
        assert ended.next_update == 6 and ended.evaluations_without_gain == 3
        saved = Cursor.from_json((checkpoint / CURSOR).read_text())
        assert saved == dataclasses.replace(ended, lowest_metric=saved.lowest_metric) and saved.lowest_metric == pytest.approx(ended.lowest_metric)
        assert read_manifest(checkpoint).metric is not None
        stops = [line for line in read_lines(tmp_path / folder / "events.jsonl") if line["event"] == "early_stop"]
        assert [(stop["update"], stop["total_updates"], stop["evaluations"], stop["metric"]) for stop in stops] == [(6, 12, 3, "loss")] * 2
        assert len(read_lines(tmp_path / folder / "metrics.jsonl")) == 6


def test_an_evaluation_added_to_a_checkpoint_counts_once(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """A run that is asked to stop saves before an evaluation that is due; whoever goes on adds its metric to that checkpoint, whose cursor stays."""
    spec = stopping_spec(2, patience=2)
    pool.run(train_evaluated, 1, [(str(tmp_path / "whole"), spec)], *small, logs=tmp_path / "logs")
    copy_at(tmp_path / "whole", tmp_path / "added", 3)
    add_metric(tmp_path / "added" / "checkpoints" / "update_00000003", 1000.0)
    [cursor] = pool.run(train_evaluated, 2, [(str(tmp_path / "added"), spec)], *small, logs=tmp_path / "logs")[0]
    assert (cursor.next_update, cursor.evaluations_without_gain, cursor.measured_update) == (3, 2, 3)


def test_an_ended_run_goes_on_without_patience(pool: RankPool, small: Small, tmp_path: Path) -> None:
    spec = stopping_spec(3, patience=1)
    on = with_section(spec, "evaluation", early_stopping_patience=0)
    for each, last in ((spec, 2), (on, 12)):
        [cursor] = pool.run(train_evaluated, 1, [(str(tmp_path / "run"), each)], *small, logs=tmp_path / "logs")[0]
        assert cursor.next_update == last
