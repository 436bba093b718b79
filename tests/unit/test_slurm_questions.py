"""Questions to Slurm's controller when it is busy or silent: how often they are asked, and for how long."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftcore.spec.errors import ClusterError
from launcher.submission import slurm
from launcher.submission.slurm import show_job
from tests.unit.test_submit import program

Ended = subprocess.CompletedProcess[str]


def test_a_controller_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", "scontrol", f"open({str(tmp_path / 'tries')!r}, 'a').write('x'); sys.exit('Unable to contact slurm controller')")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(slurm, "PAUSES_S", (0.0, 0.0))
    with pytest.raises(ClusterError, match="Unable to contact slurm controller"):
        show_job("7")
    assert (tmp_path / "tries").read_text() == "xxx"


def test_a_silent_controller_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One limit for all tries: after an error the next try gets what is left, and silence is not tried again."""
    really_run = subprocess.run
    limits: list[float] = []
    answers: list[Callable[..., Ended]] = []
    now = [100.0]

    def run(argv: list[str], **options: Any) -> Ended:
        limits.append(options["timeout"])
        return answers.pop(0)(argv, **options)

    def busy(argv: list[str], **_: Any) -> Ended:
        return subprocess.CompletedProcess(argv, 1, "", "is busy")

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(slurm, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(slurm, "COMMAND_LIMIT_S", 2.0)
    monkeypatch.setattr(slurm, "PAUSES_S", (0.1, 0.1))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    program(tmp_path / "bin", "scontrol", "import time; time.sleep(600)")
    answers.append(really_run)
    with pytest.raises(ClusterError, match="scontrol got no answer: no answer within 2 s"):
        show_job("7")
    assert limits == [2.0]
    # An error at the first try, and silence after it.
    answers += [busy, really_run]
    with pytest.raises(ClusterError, match="scontrol got no answer: is busy"):
        show_job("7")
    assert limits[1:] == [2.0, pytest.approx(1.9)] and not answers
    # No time for another try.
    monkeypatch.setattr(slurm, "PAUSES_S", (1.9, 1.9))
    answers.append(busy)
    with pytest.raises(ClusterError, match="is busy"):
        show_job("7")
    assert limits[3:] == [2.0]
