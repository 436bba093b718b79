"""What a measured point depends on: the files that its spec names."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from launcher.scaling.identity import differences, identity_of
from launcher.scaling.points import plan_points
from tests.unit.scaled import here, machines, request


@pytest.mark.parametrize(("kind", "path"), [("data", "rows"), ("data", "rows/*.jsonl"), ("model", "rows")])
def test_one_changed_file_of_a_folder_or_a_pattern_is_told(tmp_path: Path, kind: str, path: str) -> None:
    """The folder itself stays as it was when one of its files is written anew in its place."""
    file, named = tmp_path / "rows" / "part.jsonl", str(tmp_path / path)
    file.parent.mkdir()
    file.write_text("{}\n")
    resolved = here()
    section = {"train": dataclasses.replace(resolved.spec.data.train, path=named)} if kind == "data" else {"model_name_or_path": named}
    spec = dataclasses.replace(resolved.spec, **{kind: dataclasses.replace(getattr(resolved.spec, kind), **section)})
    asked = request(dataclasses.replace(resolved, spec=spec))
    wanted = plan_points(asked, machines(), 1)[0]

    def identity() -> dict[str, object]:
        return dict(json.loads(json.dumps(identity_of(wanted, asked, "", {}))))

    before = identity()
    assert differences(before, identity()) == ""
    file.write_text("{}\n{}\n")
    assert differences(before, identity()) == f"the file {named}"
