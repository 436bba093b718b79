"""Making a thing once, and leaving nothing behind when making it fails."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from ftcore.data.lock import exclusive, new_folder
from ftcore.spec.errors import DataError


def test_one_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        with exclusive(tmp_path / "deep" / "x.lock"):
            inside.append(number)
            most.append(len(inside))
            threading.Event().wait(0.02)
            inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 5


def test_folder_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "models" / "a"
    with new_folder(target) as aside:
        (aside / "file").write_text("x")
        assert not target.exists()
    assert [path.name for path in target.parent.iterdir()] == ["a"]
    assert (target / "file").read_text() == "x"
    assert target.stat().st_mode & 0o777 == 0o755


def _make_half(path: Path) -> None:
    with new_folder(path) as aside:
        (aside / "file").write_text("x")
        raise RuntimeError("stop")


def test_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stop"):
        _make_half(tmp_path / "models" / "a")
    assert list((tmp_path / "models").iterdir()) == []


def test_a_disk_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(DataError, match="has no file locks"), exclusive(tmp_path / "x.lock"):
        raise AssertionError("it went in")
