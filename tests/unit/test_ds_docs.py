"""docs/deepspeed-json.md is what the schema says."""

from __future__ import annotations

from pathlib import Path

from launcher.ds_json.docs import render_ds_docs


def test_docs_are_fresh() -> None:
    page = Path(__file__).parents[2] / "docs" / "deepspeed-json.md"
    assert page.read_text(encoding="utf-8") == render_ds_docs(), "run: python -m launcher.ds_json.docs > docs/deepspeed-json.md"
