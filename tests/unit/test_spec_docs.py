"""docs/spec.md is what the schema says, and every key has an example that is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.resolve import Options, check_spec
from launcher.spec_docs import SCHEMA, keys_of, render_spec_docs

LISTED = "optimizer.parameter_groups[]."
HOLDERS = ("method.adapters", "data.eval_sets", "optimizer.parameter_groups")
"""Keys whose own keys have examples too."""


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return loaded


def test_docs_are_fresh(schema: dict[str, Any]) -> None:
    page = Path(__file__).parents[2] / "docs" / "spec.md"
    assert page.read_text(encoding="utf-8") == render_spec_docs(schema), "run: python -m launcher.spec_docs > docs/spec.md"


def test_every_key_has_an_example_that_fits_it(schema: dict[str, Any], tmp_path: Path) -> None:
    """As the page shows them, given with --set: some don't go with each other, none has a wrong type or value."""
    entries = {key: entry for name, section in schema["properties"].items() for key, entry, _ in keys_of(f"{name}.", section, schema)}
    assert not [key for key, entry in entries.items() if not entry.get("examples") or entry["examples"][0] == entry.get("default", "none")]
    shown = {line.split("`")[1]: line.split(" | ")[4].strip("`") for line in render_spec_docs(schema).splitlines() if line.startswith("| `")}
    assert shown.keys() == entries.keys()
    group = ", ".join(f"{key.removeprefix(LISTED)}: {value}" for key, value in shown.items() if key.startswith(LISTED))
    sets = [f"{key.replace('NAME', 'small')}={value}" for key, value in shown.items() if not key.startswith((LISTED, *HOLDERS)) or ".NAME." in key]
    spec = tmp_path / "spec.yaml"
    spec.write_text("model: {model_name_or_path: a/b}\ndata: {train: {path: x}}\n")
    alone = [f"{key}={shown[key]}" for key in HOLDERS]
    given = (sets, alone, [f"optimizer.parameter_groups=[{{{group}}}]"])
    found = [problem for chosen in given for problem in check_spec(Options(spec_path=spec, sets=tuple(chosen)))]
    wrong = ("expected", "out of range", "unknown", "is set by", "missing", "it is empty")
    assert not [problem for problem in found if any(word in problem.what for word in wrong)]


def test_units_are_told(schema: dict[str, Any]) -> None:
    page = render_spec_docs(schema)
    for part in ("| `data.max_length` | integer ≥ 2 ≤ 16777216 | `1024` | tokens |", "| bytes | `80 GiB` |", "| seconds | `1h` |"):
        assert part in page
