"""What the preparation of an evaluation hands to its ranks: EVALUATION/prepared.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftcore.data.prepared import ModelSource, PreparedSet
from ftcore.scoring.result import ModelIdentity
from ftcore.spec.stored import read_stored, stored_text

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """Everything that the ranks need, found and checked."""

    source: ModelSource
    """The model whose weights are loaded; its tokenizer too."""
    identity: ModelIdentity
    sets: dict[str, PreparedSet]
    """The held-out sets by name."""
    stops: tuple[int, ...] = ()
    """Tokens that end an answer, without those of the model's generation config; empty when no answers are generated."""
    version: int = PLAN_VERSION

    def to_json(self) -> str:
        """Indented JSON with a final newline; `load_plan` gives back an equal value."""
        return stored_text(self)


def load_plan(path: Path) -> EvaluationPlan:
    """Reads prepared.json. Raises CheckpointError when it is missing, damaged or of another version."""
    return read_stored(EvaluationPlan, path, version=PLAN_VERSION, name="a prepared evaluation", fix="start the evaluation again: ftlaunch evaluate")
