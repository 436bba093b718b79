"""docs/spec.md is what the schema says."""

from __future__ import annotations

import json
from pathlib import Path

from launcher.spec_docs import SCHEMA, render_spec_docs


def test_docs_are_fresh() -> None:
    page = Path(__file__).parents[2] / "docs" / "spec.md"
    expected = render_spec_docs(json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert page.read_text(encoding="utf-8") == expected, "run: python -m launcher.spec_docs > docs/spec.md"
