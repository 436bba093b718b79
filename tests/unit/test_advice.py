"""How to go on after a bad end: as who launches says it, else by a resume."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ftcore.spec.run_dir import RunDir
from launcher import attempts
from launcher.approach import approach_hosts
from launcher.attempts import Manner, Owned, launch
from launcher.backends.base import Launch
from launcher.failure import RunStoppedError
from launcher.progress import Progress
from tests.unit.local_launch import resolved_for


def owned(folder: Path, advice: str) -> Owned:
    return Owned(run_dir=RunDir(folder), lock_handle=-1, manner=Manner(dry_run=True, exports=False, variables={}, advice=advice))


@pytest.mark.parametrize(("advice", "told"), [("submit it again", "to go on: submit it again"), ("", "to go on: ftlaunch --resume ")])
def test_of_a_pause_that_a_signal_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advice: str, told: str) -> None:
    waits = attempts.select.select

    def signalled(*arguments: object) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return waits(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(attempts.select, "select", signalled)
    with pytest.raises(RunStoppedError, match=told):
        attempts._pause(5.0, owned(tmp_path, advice))


def test_of_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Launch] = []

    def keep(started: Launch, progress: Progress) -> str:
        seen.append(started)
        return ""

    monkeypatch.setattr(attempts, "run_launch", keep)
    resolved = resolved_for()
    launch(owned(tmp_path, "submit it again"), resolved, approach_hosts(resolved, tmp_path, starts=False))
    assert [started.advice for started in seen] == ["submit it again"]
