"""B15: the code is a part of the key of prepared samples: all of it that has a say in what a row becomes, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ftcore.data import cache_key

CORE = Path(cache_key.__file__).parents[1]


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the core's folders, whose digest is asked for."""
    for name in ("data", "spec"):
        shutil.copytree(CORE / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(cache_key, "__file__", str(tmp_path / "data" / "cache_key.py"))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("data/overlong.py", True),
        ("data/formats/roles.py", True),
        ("data/reading/lines.py", True),
        ("data/templates/markers.py", True),
        ("spec/data_formats.py", True),
        ("spec/names.py", True),
        ("data/mix.py", False),
        ("data/workers.py", False),
        ("spec/quantities.py", False),
    ],
)
def test_code_that_decides_what_a_row_becomes_is_in_the_key(name: str, counts: bool, code: Path) -> None:
    before = cache_key.code_digest.__wrapped__()
    assert before == cache_key.code_digest()
    path = code / name
    path.write_text(path.read_text(encoding="utf-8") + "#", encoding="utf-8")
    assert (cache_key.code_digest.__wrapped__() != before) is counts
