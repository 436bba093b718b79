"""What a launch takes from the machine it starts on: a place to meet, descriptors, a folder for logs, a shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ftcore.spec.errors import ClusterError
from ftcore.spec.run_dir import RunDir
from launcher.children import Child, run_child, stop_signals
from launcher.launching import export_run
from launcher.processes import LAUNCH_ID
from launcher.transport import bash
from tests.unit.live_processes import ROOT, environment


def test_a_machine_that_starts_nothing_more(tmp_path: Path) -> None:
    program = (
        "import os, resource, sys, pathlib; from launcher.children import stop_signals; from ftcore.spec.errors import FtError\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "try:\n"
        "    with stop_signals(): pass\n"
        "except FtError as error: print(error); sys.exit(error.exit_status)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 3 and "can't start the launch: " in ended.stdout and "ulimit -a" in ended.stdout


def test_an_export_of_a_run_that_can_not_be_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").touch()
    export_run(RunDir(tmp_path), (sys.executable, "-c", "print('exported')"))
    folder = Path(capsys.readouterr().out.strip().rpartition(" ")[2])
    assert (folder / "export.log").read_text() == "exported\n"
    shutil.rmtree(folder)


def test_a_program_that_can_not_be_started(tmp_path: Path) -> None:
    child = Child(argv=(str(tmp_path / "gone"),), environment={LAUNCH_ID: "x"}, log=tmp_path / "log", grace_s=1, death_signal=9)
    with stop_signals() as stop, pytest.raises(ClusterError, match=r"can't start .*gone"):
        run_child(child, stop, lambda event: None, lambda: None)


def test_the_shell_is_found_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert os.path.isabs(bash())
