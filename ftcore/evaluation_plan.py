"""What the preparation of an evaluation hands to its ranks: EVALUATION/prepared.json."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from ftcore.data.prepared import ModelSource, PreparedSet
from ftcore.scoring.result import ModelIdentity
from ftcore.spec.errors import CheckpointError
from ftcore.spec.resolved import build

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
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"


def load_plan(path: Path) -> EvaluationPlan:
    """Reads prepared.json. Raises CheckpointError when it is missing, damaged or of another version."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.get("version") != PLAN_VERSION:
            raise ValueError(f"version {data.get('version')!r}, this ftlaunch reads {PLAN_VERSION}")
        return build(EvaluationPlan, data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"not a prepared evaluation: {error}", where=str(path), fix="start the evaluation again: ftlaunch evaluate") from error
