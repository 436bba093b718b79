"""Data sets of a few rows, prepared with the tiny model's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcore.data.build import prepare_set
from ftcore.data.prepared import ModelSource, PreparedSet
from ftcore.spec.sections import DataSection, TrainingSet
from ftcore.tiny_llama import tiny_tokenizer

PAIR = {"prompt": "a", "completion": "b"}


def tiny_source(folder: Path) -> ModelSource:
    """A folder with the tiny model's tokenizer alone."""
    tiny_tokenizer().save_pretrained(folder)
    return ModelSource(path=str(folder), revision="", digest="", name="tiny", trust_remote_code=False)


def section(path: Path | str, *, max_length: int = 1024, overlong: str = "drop", form: str = "messages") -> DataSection:
    return DataSection(train=TrainingSet(path=str(path), format=form), max_length=max_length, overlong=overlong)


def pairs(path: Path, **change: Any) -> DataSection:
    return replace(section(path, form="prompt_completion"), **change)


def prepared(data: DataSection, source: ModelSource, cache: Path) -> PreparedSet:
    return prepare_set("data.train", data.training["train"], data, source, cache)


def write_rows(path: Path, rows: Sequence[object]) -> Path:
    """One line a row; a text stands as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return path


def outcomes(kept: PreparedSet) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(kept.outcomes).read_text(encoding="utf-8").splitlines()]
