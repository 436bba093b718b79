"""Outputs that are devices, paths that are empty, and numbers that are none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import click
import pytest

from ftcore.spec.run_dir import RunDir, write_atomic
from launcher.cli import main
from launcher.inspect.events import last_launch
from launcher.verb_options import FILE, FOLDER, FiniteRange


def test_a_device_or_a_pipe_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for path in (tmp_path / "pipe", tmp_path / "null", Path("/dev/full"), Path("/dev/stdout")):
        with pytest.raises(OSError, match="a device or a pipe"):
            write_atomic(path, "text")
    assert (tmp_path / "pipe").is_fifo() and Path("/dev/full").is_char_device()


@pytest.mark.parametrize("kind", [FILE, FOLDER])
def test_an_empty_path_is_not_the_current_folder(kind: click.Path) -> None:
    with pytest.raises(click.BadParameter, match="empty"):
        kind.convert("", None, None)


@pytest.mark.parametrize("text", ["nan", "inf", "-1"])
def test_a_number_that_nobody_can_count_with_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        FiniteRange(0.0).convert(text, None, None)
    assert FiniteRange(0.0).convert("2.5", None, None) == 2.5


@pytest.mark.parametrize(
    "words",
    [["watch", ""], ["diff", "", "."], ["export", "", "--to", "x"], ["checkpoints", "ls", ""], ["validate", ""], ["plan", ""], ["cost", ""], ["scale", ""]],
)
def test_a_run_or_spec_without_a_name_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "empty" in capsys.readouterr().err


def test_a_launch_with_odd_numbers_is_still_one(tmp_path: Path) -> None:
    lines = ['{"event": "launch_started", "attempt": NaN, "time": 1e999}', '{"event": "launch_ended", "attempt": NaN, "status": "x"}']
    (tmp_path / "events.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = last_launch(RunDir(tmp_path))
    assert found is not None and (found.attempt, found.started, found.status) == (0, 0.0, 1)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_nothing_is_no_bug_of_ours(number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number), "/there/file")

    monkeypatch.setattr("launcher.commands.watch.run", fail)
    assert main(["watch", "runs"]) == 5
    told = capsys.readouterr().err
    assert "/there/file" in told and os.strerror(number) in told and "fix:" in told and "bug" not in told
