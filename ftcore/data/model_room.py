"""What a model has room for: positions, and embeddings of token ids."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ftcore.data.prepared import ModelSource
from ftcore.spec.errors import Problem


@dataclass(frozen=True, slots=True)
class ModelRoom:
    """As config.json says; None: it doesn't."""

    positions: int | None
    vocabulary: int | None

    @staticmethod
    def of(model: ModelSource) -> ModelRoom:
        """Of the model in a folder."""
        config = json.loads((Path(model.path) / "config.json").read_text(encoding="utf-8"))
        positions, vocabulary = config.get("max_position_embeddings"), config.get("vocab_size")
        return ModelRoom(positions if isinstance(positions, int) else None, vocabulary if isinstance(vocabulary, int) else None)

    def misfits(self, where: str, *, longest: int, highest_id: int) -> list[Problem]:
        """Why samples of at most `longest` tokens with ids up to `highest_id` can't be computed; `where` is their set's key."""
        problems: list[Problem] = []
        if self.positions is not None and longest > self.positions:
            what = f"a sample of {longest} tokens, and the model has {self.positions} positions"
            problems.append(Problem(what=what, where=where, fix=f"set data.max_length to {self.positions} or less"))
        if self.vocabulary is not None and highest_id >= self.vocabulary:
            what = f"the tokenizer makes token id {highest_id}, and the model's vocab_size is {self.vocabulary}"
            fix = "use the model's own tokenizer, or resize the model's embeddings and save it"
            problems.append(Problem(what=what, where="model.model_name_or_path", fix=fix))
        return problems
