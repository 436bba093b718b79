"""The schemas of metrics.jsonl, metrics/rank_R.jsonl and events.jsonl, and the page that describes every field of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ftcore.metrics.scalars import GROUPS, NAMES
from ftcore.metrics.writer import MetricsWriter, record_event
from ftcore.spec import run_lines
from ftcore.spec.run_dir import RunDir

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
SCHEMAS = ("metrics", "rank_metrics", "events")


def schema(name: str) -> dict[str, Any]:
    """ftcore/spec/NAME.schema.json."""
    found: dict[str, Any] = json.loads((ROOT / "ftcore" / "spec" / f"{name}.schema.json").read_text(encoding="utf-8"))
    return found


def faults(name: str, line: dict[str, Any]) -> list[str]:
    """What a schema has against a line."""
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in jsonschema.Draft202012Validator(schema(name)).iter_errors(line)]


@pytest.mark.parametrize("name", SCHEMAS)
def test_they_are_schemas_of_the_draft_they_name(name: str) -> None:
    found = schema(name)
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(found)


@pytest.mark.parametrize("name", ["metrics", "rank_metrics"])
def test_the_page_describes_every_field_with_its_unit(name: str) -> None:
    found = schema(name)
    assert found["properties"]["schema"]["const"] == run_lines.METRICS_SCHEMA
    for field, about in found["properties"].items():
        told = "" if field in found["required"] else " Not in every line."
        assert f"| `{field}` | {about.get('unit', '')} | {about['description']}{told} |" in PAGE.splitlines(), field
    phases = found["properties"]["phases"]["properties"]
    assert tuple(phases) == run_lines.PHASES
    assert all(f"| `{phase}` | {about['description']} |" in PAGE for phase, about in phases.items())


def test_the_page_describes_every_event() -> None:
    for rule in schema("events")["allOf"]:
        name = rule["if"]["properties"]["event"]["const"]
        assert f"| `{name}` |" in PAGE
        for field, about in rule["then"]["properties"].items():
            assert f"| `{field}` | {about.get('unit', '')} | {about['description']} |" in PAGE, (name, field)


def test_the_page_names_every_scalar() -> None:
    assert [name for field, name in NAMES.items() if f"| `{name}` | `{field}` |" not in PAGE] == []
    assert [name for field, name in GROUPS.items() if f"| `{name}/NAME` | `{field}` |" not in PAGE] == []
    fields = schema("metrics")["properties"]
    assert (NAMES.keys() | GROUPS.keys()) <= fields.keys()


def test_wrong_lines_are_told() -> None:
    assert "'attempt' is a required property" in " ".join(faults("metrics", {"schema": 1}))
    assert any("Additional properties" in each for each in faults("metrics", {"new_field": 1}))
    assert any(each.startswith("rank: ") for each in faults("rank_metrics", {"rank": -1}))
    assert faults("events", {"event": "evaluation", "time": 1.0}) and not faults("events", {"event": "of another version", "time": 1.0})


def test_what_is_not_finite_is_text_wherever_it_stands(tmp_path: Path) -> None:
    """C11, K06: JSON has no NaN, and a reader other than Python's must get through every line."""
    run_dir = RunDir(tmp_path)
    writer = MetricsWriter(run_dir.metrics, next_update=0)
    writer.write({"update": 1, "loss": math.nan, "losses": {"a": math.inf}, "list": [1.0, -math.inf]})
    writer.close()
    record_event(run_dir, "evaluation", update=1, set="eval", loss=math.nan, tokens=3, perplexity=None)

    def refuse(text: str) -> Any:
        raise AssertionError(text)

    line = json.loads(run_dir.metrics.read_text(), parse_constant=refuse)
    assert (line["loss"], line["losses"], line["list"]) == ("nan", {"a": "inf"}, [1.0, "-inf"])
    event = json.loads(run_dir.events.read_text(), parse_constant=refuse)
    assert event["loss"] == "nan" and not faults("events", event)
