"""When a run ends before its last update because its evaluations no longer get better. What is counted travels in the cursor."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from ftcore.batch.cursor import Cursor
from ftcore.checkpoint.manifest import read_manifest
from ftcore.dist import Ranks, gather_objects
from ftcore.spec.sections import EvaluationSection


def is_over(cursor: Cursor, evaluation: EvaluationSection) -> bool:
    """Whether as many evaluations in a row as the spec's patience did not bring the metric down; the same on every rank."""
    return 0 < evaluation.early_stopping_patience <= cursor.evaluations_without_gain


def after_evaluation(cursor: Cursor, metric: float | None, evaluation: EvaluationSection) -> Cursor:
    """The cursor once `metric`, lower is better, was measured where it stands; None: the run has no metric of its best model.

    As transformers' EarlyStoppingCallback counts: a gain is a metric that is lower than the lowest so far by more than the threshold.
    """
    if metric is None:
        return cursor
    lowest = cursor.lowest_metric
    gained = math.isfinite(metric) and (lowest is None or lowest - metric > evaluation.early_stopping_threshold)
    return dataclasses.replace(
        cursor,
        lowest_metric=metric if math.isfinite(metric) and (lowest is None or metric < lowest) else lowest,
        evaluations_without_gain=0 if gained else cursor.evaluations_without_gain + 1,
        measured_update=cursor.next_update,
    )


def made_up_for(cursor: Cursor, newest: Path, evaluation: EvaluationSection, ranks: Ranks) -> Cursor:
    """The cursor of the checkpoint `newest`, with the evaluation that was added to it after it was saved; every rank calls it."""
    if cursor.next_update in (0, cursor.measured_update):
        return cursor
    metric = gather_objects(read_manifest(newest).metric if ranks.is_first else None, ranks)[0]
    return after_evaluation(cursor, metric, evaluation)
