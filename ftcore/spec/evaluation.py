"""What `ftlaunch evaluate` asks for: EVALUATION/request.json, written by the launcher and read by the processes of the evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.stored import read_stored, stored_text

REQUEST_VERSION = 1
KINDS = ("run", "adapter", "model", "base")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """One model on every held-out set of a spec."""

    kind: str
    """run, adapter, model, or base (the spec's own model before training)."""
    name: str
    """The model as the user gave it."""
    path: str = ""
    """Absolute folder of a run or an adapter; empty for the other kinds."""
    update: int | None = None
    """Of a run: the checkpoint taken after this update; None: the newest whole one, or the best."""
    best: bool = False
    """Of a run: the checkpoint called best."""
    adapter: str = ""
    """Of a run with several adapters: which."""
    against: str = ""
    """Absolute path of an earlier result to compare with; empty: none."""
    resolved: ResolvedSpec
    """Its model is the one whose weights are loaded, its method says what is attached to them."""
    version: int = REQUEST_VERSION

    def to_json(self) -> str:
        """Indented JSON with a final newline; `load_request` gives back an equal value."""
        return stored_text(self)


@dataclass(frozen=True, slots=True)
class EvaluationDir:
    """The folder of an evaluation and what lies in it beside logs and node scripts. Nothing here touches the disk."""

    path: Path

    @property
    def request(self) -> Path:
        return self.path / "request.json"

    @property
    def prepared(self) -> Path:
        """What the preparation made: where model, samples and questions lie."""
        return self.path / "prepared.json"

    @property
    def result(self) -> Path:
        return self.path / "evaluation.json"

    @property
    def table(self) -> Path:
        """The result as a table for a terminal."""
        return self.path / "evaluation.txt"

    @property
    def comparison(self) -> Path:
        return self.path / "comparison.json"

    @property
    def comparison_table(self) -> Path:
        return self.path / "comparison.txt"

    def questions(self, name: str) -> Path:
        """The prompts of set `name`, with what the data answers."""
        return self.path / "questions" / f"{name}.jsonl"

    def rows(self, name: str) -> Path:
        """A line for each row of set `name`: its loss and scores."""
        return self.path / "rows" / f"{name}.jsonl"

    def predictions(self, name: str) -> Path:
        """A line for each answer to a row of set `name`."""
        return self.path / "predictions" / f"{name}.jsonl"


def load_request(path: Path) -> EvaluationRequest:
    """Reads request.json. Raises CheckpointError when it is missing, damaged or of another version."""
    return read_stored(EvaluationRequest, path, version=REQUEST_VERSION, name="an evaluation", fix="start the evaluation again: ftlaunch evaluate")
