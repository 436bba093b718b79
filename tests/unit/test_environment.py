"""The environment of a run's processes, and environment files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftcore.spec.errors import SpecError
from launcher.environment import import_root, process_environment, read_env_file

ROOT = Path(__file__).resolve().parents[2]


def test_blank_lines_and_comments() -> None:
    assert read_env_file(ROOT / "tests/cases/envfiles/blank_and_comment.env") == {"A": "1", "B": "2"}


def test_other_forms(tmp_path: Path) -> None:
    path = tmp_path / "e"
    path.write_bytes(b'\xef\xbb\xbfexport C=3\r\nD="x y"\nE=\nF=a=b # kept\nexporter=1\n G=\'\n')
    assert read_env_file(path) == {"C": "3", "D": "x y", "E": "", "F": "a=b # kept", "exporter": "1", "G": "'"}


def test_malformed_lines_are_named_without_their_secrets(tmp_path: Path) -> None:
    path = tmp_path / "e"
    path.write_bytes(b"A=1\nTOKEN hunter2\nB = 2\n2C=1\nA=2\nRANK=0\nD=x\0y\nFTLAUNCH_EVENTS_FD=1\n")
    with pytest.raises(SpecError) as caught:
        read_env_file(path)
    assert [problem.line for problem in caught.value.problems] == [2, 3, 4, 5, 6, 7, 8]
    assert all(problem.file == str(path) and problem.fix for problem in caught.value.problems)
    assert "hunter2" not in str(caught.value) and "already on line 1" in str(caught.value) and "RANK is set by ftlaunch" in str(caught.value)


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"A=\xff\n")
    for name, reason in (("missing", "No such file"), ("latin", "not UTF-8")):
        with pytest.raises(SpecError, match=reason):
            read_env_file(tmp_path / name)


def test_the_environment_of_a_process() -> None:
    base = {"PATH": "/bin", "PYTHONPATH": "/x", "RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_USE_AGENT_STORE": "True", "A": "1"}
    made = process_environment(base, {"A": "2"}, launch_id="id", import_root="/src")
    assert made == {"PATH": "/bin", "PYTHONPATH": "/src:/x", "A": "2", "PYTHONSAFEPATH": "1", "FTLAUNCH_LAUNCH_ID": "id"}
    assert process_environment({"PYTHONPATH": "/x"}, {}, launch_id="id", import_root="")["PYTHONPATH"] == "/x"


def test_the_import_root_of_a_checkout() -> None:
    assert import_root() == str(ROOT)
