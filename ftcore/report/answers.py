"""What `ftlaunch evaluate` found of a run's checkpoints: RUN/evaluations."""

from __future__ import annotations

from dataclasses import dataclass

from ftcore.report.blocks import Column, Table
from ftcore.report.numbers import count, fixed, percent, short_number
from ftcore.report.run_view import RunView
from ftcore.scoring.result import Result, read_result
from ftcore.spec.errors import CheckpointError

MOST_LISTED = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One evaluation."""

    folder: str
    result: Result


def answers_of(view: RunView) -> list[Answered]:
    """The evaluations in the run's folder by their time; those that can't be read are left out."""
    found = []
    for file in (view.record.run_dir.path / "evaluations").glob("*/evaluation.json"):
        try:
            found.append(Answered(folder=file.parent.name, result=read_result(file)[1]))
        except CheckpointError:
            continue
    return sorted(found, key=lambda each: (each.result.created, each.folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A metric of a held-out set."""

    value: float
    rows: tuple[str, int]
    """(the set's fingerprint, how many of its rows were answered): scores of other rows can't be compared."""


def newest_scores(view: RunView) -> dict[str, Score]:
    """`SET: METRIC` -> the score of the newest evaluation that has it."""
    found: dict[str, Score] = {}
    for each in answers_of(view):
        for name, scored in each.result.sets.items():
            rows = (scored.fingerprint, scored.answered_rows)
            found |= {f"{name}: {metric}": Score(value=value, rows=rows) for metric, value in scored.metrics.items()}
    return found


def answer_table(view: RunView) -> Table | None:
    """A row a set of each evaluation; None where there is none."""
    answered = answers_of(view)[-MOST_LISTED:]
    if not answered:
        return None
    metrics = list(dict.fromkeys(metric for each in answered for scored in each.result.sets.values() for metric in scored.metrics))
    numbers = ("update", "rows", "loss", "perplexity", *metrics)
    columns = (Column(name="evaluation"), Column(name="set"), *(Column(name=name, is_number=True) for name in numbers))
    rows = []
    for each in answered:
        for name, scored in each.result.sets.items():
            update = count(each.result.model.update) if each.result.model.update is not None else "–"
            scores = [percent(scored.metrics.get(metric)) for metric in metrics]
            rows.append((each.folder, name, update, count(scored.rows), fixed(scored.loss), short_number(scored.perplexity), *scores))
    return Table(name="Evaluations of checkpoints, by ftlaunch evaluate", columns=columns, rows=tuple(rows))
