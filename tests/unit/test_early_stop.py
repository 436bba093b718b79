"""Early stopping: what counts as a gain, what the cursor keeps of it, and what a user is told."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from ftcore.batch.cursor import Cursor
from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import EvaluationSection
from ftcore.train.early_stop import after_evaluation, is_over
from launcher.inspect.report import look
from launcher.record import Record
from launcher.resolve import read_and_resolve
from launcher.resuming import resolve_again
from launcher.spec_source import Options
from launcher.summary import render_summary
from tests.unit.local_launch import resolved_for

START = Cursor(order_seed=1, data_fingerprint="f")
TWO = EvaluationSection(early_stopping_patience=2, early_stopping_threshold=0.1)


@pytest.mark.parametrize(
    ("metrics", "lowest", "without_gain"),
    [
        ([3.0, 2.0, 1.0], 1.0, 0),
        ([3.0, 3.0, 3.5], 3.0, 2),
        ([3.0, 2.95, 2.9], 2.9, 2),
        ([3.0, 3.5, 2.0], 2.0, 0),
        ([3.0, math.nan, math.inf], 3.0, 2),
        ([math.nan, 3.0], 3.0, 0),
        ([3.0, None], 3.0, 0),
    ],
)
def test_gains(metrics: list[float | None], lowest: float, without_gain: int) -> None:
    """As transformers counts: against the lowest so far, so that many small steps below the threshold are no gain."""
    cursor = START
    for update, metric in enumerate(metrics):
        cursor = after_evaluation(dataclasses.replace(cursor, next_update=update), metric, TWO)
    assert (cursor.lowest_metric, cursor.evaluations_without_gain) == (lowest, without_gain)
    assert is_over(cursor, TWO) == (without_gain == 2)
    assert not is_over(cursor, EvaluationSection())
    assert Cursor.from_json(cursor.to_json()) == cursor


def test_transformers_counts_alike() -> None:
    from transformers import EarlyStoppingCallback, TrainerControl, TrainerState, TrainingArguments

    callback, state, control = EarlyStoppingCallback(2, 0.1), TrainerState(), TrainerControl()
    arguments = TrainingArguments(metric_for_best_model="loss", greater_is_better=False, use_cpu=True)
    cursor = START
    for metric in (3.0, 2.95, 2.8, 2.75, 2.76, 2.0, 2.0, 1.99):
        callback.on_evaluate(arguments, state, control, metrics={"eval_loss": metric})
        cursor = after_evaluation(cursor, metric, TWO)
        assert cursor.evaluations_without_gain == callback.early_stopping_patience_counter
        assert is_over(cursor, TWO) == control.should_training_stop
        state.best_metric = metric if state.best_metric is None else min(state.best_metric, metric)
        control.should_training_stop = False


def test_a_cursor_of_an_older_checkpoint_counts_from_nothing() -> None:
    values = dataclasses.asdict(dataclasses.replace(START, next_update=7))
    for name in ("lowest_metric", "evaluations_without_gain", "measured_update"):
        del values[name]
    assert Cursor.from_json(json.dumps(values)) == dataclasses.replace(START, next_update=7)
    del values["epoch"]
    with pytest.raises(CheckpointError, match="epoch missing"):
        Cursor.from_json(json.dumps(values))


def test_the_summary_says_why() -> None:
    record = Record()
    record.add({"event": "early_stop", "update": 6, "total_updates": 12, "metric": "eval/loss", "lowest": 1.25, "evaluations": 3})
    text = render_summary(record, run_folder="runs/a", model_folder=None, checkpoint=None)
    assert "  stopped early     after update 6 of 12: no gain of eval/loss in 3 evaluations, its lowest is 1.2500\n" in text
    record.add({"event": "early_stop", "update": 6, "total_updates": 12, "metric": "loss", "lowest": 1.25, "evaluations": 1, "threshold": 0.01})
    text = render_summary(record, run_folder="runs/a", model_folder=None, checkpoint=None)
    assert "no gain of loss by more than 0.01 in the last evaluation, its lowest" in text
    record = Record()
    record.add({"event": "data_end", "update": 5, "total_updates": 12, "dropped_rows": {"overlong": 3}})
    ended = render_summary(record, run_folder="runs/a", model_folder=None, checkpoint=None)
    assert "  data ended        after update 5 of 12, as data.repeat: false says\n" in ended and "stopped early" not in ended
    assert "3 overlong" in ended, "rows that no line of metrics tells of"
    assert "stopped early" not in render_summary(Record(), run_folder="runs/a", model_folder=None, checkpoint=None)


def test_status_says_why_a_finished_run_is_short(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.resolved.write_text(resolved_for().to_json())
    events = [{"event": "launch_started", "time": 1.0, "attempt": 1}, {"event": "launch_ended", "time": 2.0, "attempt": 1, "status": 0, "reason": ""}]
    run_dir.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    for update, why in ((4, "stopped early, since its evaluations no longer got better"), (9, "")):
        run_dir.metrics.write_text(json.dumps({"update": update, "total_updates": 9, "loss": 1.0}) + "\n")
        report = look(run_dir)
        assert (report.state, report.why) == ("finished", why)
    run_dir.metrics.write_text(json.dumps({"update": 4, "total_updates": 9, "loss": 1.0}) + "\n")
    with run_dir.events.open("a") as file:
        file.write(json.dumps({"event": "data_end", "time": 1.5, "attempt": 1, "update": 5, "total_updates": 9}) + "\n")
    assert look(run_dir).why == "its data ended before its last update, as data.repeat: false says"


def test_a_resume_may_change_the_patience_and_what_is_profiled(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "model: {model_name_or_path: 'builtin:tiny-llama'}\n"
        "data: {train: {path: 'builtin:extraction/train'}, eval: {path: 'builtin:extraction/eval'}}\n"
        "checkpoint: {metric_for_best_model: loss}\nevaluation: {eval_steps: 5, early_stopping_patience: 2}\ncluster: {slots: 2}\n"
    )
    before = read_and_resolve(Options(spec_path=spec)).resolved
    sets = ("evaluation.early_stopping_patience=0", "profiling.updates=1", "profiling.start_update=9", "hardware.price_per_hour=2")
    after = resolve_again(before, Options(sets=sets), 2).spec
    assert (after.evaluation.early_stopping_patience, after.profiling.start_update, after.hardware.price_per_hour) == (0, 9, 2.0)
    assert after.schedule == before.spec.schedule
