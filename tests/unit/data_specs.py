"""Small specs and rows for tests of data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TINY = ("model.model_name_or_path=builtin:tiny-llama", "data.eval=null")


def chat(question: str, answer: str, **more: Any) -> str:
    """A line of a JSONL file."""
    return json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], **more}) + "\n"


def spec(folder: Path) -> Path:
    """Two training sets, one with mistakes, and a held-out set that shares rows with them."""
    (folder / "a.jsonl").write_text(chat("one", "two") + "{broken\n" + chat("three", "four") * 2 + '{"messages": []}\n' + chat("long " * 200, "x"))
    (folder / "b.csv").write_text('prompt,completion\n"<script>alert(1)</script>",yes\nno,maybe\n')
    (folder / "held.jsonl").write_text(chat("three", "four") + chat("one", "other") + chat("new", "row"))
    (folder / "spec.yaml").write_text(
        "model: {model_name_or_path: 'builtin:tiny-llama'}\n"
        "data:\n"
        "  train_sets: {talk: {path: a.jsonl, weight: 3}, pairs: {path: b.csv, weight: 1}}\n"
        "  eval: {path: held.jsonl}\n"
        "  max_length: 200\n"
    )
    return folder / "spec.yaml"
