"""docs/data-formats.md: every example is a row of the format that it stands under, and the tables are what the code knows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ftcore.data.formats.decide import decide_format
from ftcore.data.formats.record_maker import RecordMaker
from ftcore.data.formats.roles import KNOWN
from ftcore.data.reading.rows import Row
from ftcore.spec.data_formats import LOOKED_AT, TALKS
from ftcore.spec.names import COLUMNS
from ftcore.spec.sections import DataSet

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data-formats.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##)", PAGE, flags=re.MULTILINE | re.DOTALL))
EXAMPLES = [(form, json.loads(block)) for form in COLUMNS for block in re.findall(r"```json\n(.*?)```", SECTIONS[form], flags=re.DOTALL)]


@pytest.mark.parametrize(("form", "value"), EXAMPLES, ids=[form for form, _ in EXAMPLES])
def test_examples_are_rows_of_their_format(form: str, value: dict[str, Any]) -> None:
    row = Row(number=1, line=1, value=value)
    decided, _ = decide_format(DataSet(path="f.jsonl"), [row], "data.train")
    assert (decided.format, decided.columns) == (form, {})
    RecordMaker(decided, form, "data.train").record(row)


def test_every_format_has_an_example_and_every_name_stands_in_a_table() -> None:
    assert {form for form, _ in EXAMPLES} == set(COLUMNS)
    for role, names in KNOWN.items():
        assert f"| {role} | {', '.join(names)} |" in PAGE
    assert f"first {LOOKED_AT} rows" in PAGE and all(f"`{name}`" in PAGE for name in TALKS)
