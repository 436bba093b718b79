"""What an evaluation found, on disk: evaluation.json, and a line a row in rows/SET.jsonl."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcore.spec.errors import CheckpointError
from ftcore.spec.evaluation import EvaluationDir
from ftcore.spec.resolved import build

RESULT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """Which model was evaluated."""

    kind: str
    """run, adapter, model, or base (the spec's own model before training)."""
    name: str
    """As the user gave it."""
    base: str
    """Name of the model whose weights were loaded, below the adapter or the checkpoint."""
    base_digest: str
    """sha256 over that model's weight files, config.json and code."""
    revision: str = ""
    """The commit of a hub model."""
    method: str = "full"
    """full, lora or qlora."""
    update: int | None = None
    """Updates done at the checkpoint; None for a model that is no run's."""
    checkpoint: str = ""
    """The checkpoint's folder."""
    checkpoint_digest: str = ""
    """sha256 of its manifest, which lists every file's digest."""
    adapter: str = ""
    """The adapter's folder, or the name of the adapter among several."""
    adapter_digest: str = ""
    """sha256 of the adapter's weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How it was evaluated; none of it changes a loss, apart from rounding."""

    world_size: int
    zero_stage: int
    precision: str
    metrics: tuple[str, ...] = ()
    regex: str = ""
    max_new_tokens: int
    max_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetResult:
    """One held-out set."""

    path: str
    fingerprint: str
    """sha256 over the samples' ids, supervised ranges and row numbers: what a comparison goes by."""
    rows: int
    """Rows with a loss."""
    tokens: int
    """Supervised tokens in them."""
    loss: float | None
    """Sum of token losses / tokens; None when it is not finite."""
    perplexity: float | None
    """exp(loss); None when that is not finite."""
    answered_rows: int = 0
    """Rows that an answer was generated for, the set's first ones."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metric -> mean over the answered rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Content of evaluation.json."""

    model: ModelIdentity
    settings: Settings
    sets: dict[str, SetResult]
    seconds: float
    """Wall time of the ranks, loading included."""
    created: str
    """UTC, ISO 8601."""
    version: int = RESULT_VERSION

    def to_json(self) -> str:
        """Indented JSON with a final newline; `read_result` gives back an equal value."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """One line of rows/SET.jsonl."""

    row: int
    """Row of the data file, from 1."""
    loss_sum: float
    """Sum of its token losses; infinity when that was not finite (null in the file)."""
    tokens: int
    scores: dict[str, float] = field(default_factory=dict)
    """Metric -> score of the generated answer; empty when none was asked for."""

    def to_line(self) -> str:
        loss = self.loss_sum if math.isfinite(self.loss_sum) else None
        return json.dumps({"row": self.row, "loss_sum": loss, "tokens": self.tokens, "scores": self.scores}) + "\n"


def set_result(rows: list[RowResult], *, path: str, fingerprint: str) -> SetResult:
    """The figures of a set from its rows: a loss per token over everything, each metric's mean over the answered rows."""
    total, tokens = math.fsum(row.loss_sum for row in rows), sum(row.tokens for row in rows)
    loss = total / tokens if tokens else 0.0
    answered = [row.scores for row in rows if row.scores]
    return SetResult(
        path=path,
        fingerprint=fingerprint,
        rows=len(rows),
        tokens=tokens,
        loss=loss if math.isfinite(loss) else None,
        perplexity=perplexity(loss),
        answered_rows=len(answered),
        metrics={name: math.fsum(scores[name] for scores in answered) / len(answered) for name in (answered[0] if answered else ())},
    )


def perplexity(loss: float) -> float | None:
    """exp(loss), or None where that is not finite."""
    try:
        value = math.exp(loss)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def read_result(path: Path) -> tuple[Path, Result]:
    """(folder, result) of an evaluation's folder or its evaluation.json. Raises CheckpointError when there is none that can be read."""
    file = EvaluationDir(path).result if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data.get("version") != RESULT_VERSION:
            raise ValueError(f"version {data.get('version')!r}, this ftlaunch reads {RESULT_VERSION}")
        return file.parent, build(Result, data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        fix = "name a folder that `ftlaunch evaluate` wrote, or the evaluation.json in it"
        raise CheckpointError(f"no result of an evaluation: {reason}", where=str(path), fix=fix) from error


def read_rows(folder: Path, name: str) -> list[RowResult]:
    """The rows of set `name`, in file order. Raises CheckpointError when the file is missing or damaged."""
    path = EvaluationDir(folder).rows(name)
    try:
        return [_row(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"can't read the rows: {reason}", where=str(path), fix="keep rows/ beside evaluation.json, or evaluate again") from error


def _row(data: dict[str, Any]) -> RowResult:
    loss = data["loss_sum"]
    return build(RowResult, {**data, "loss_sum": math.inf if loss is None else loss})
