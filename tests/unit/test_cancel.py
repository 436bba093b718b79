"""`ftlaunch cancel` where the launch can't be reached, is no launch, or does not end. That it ends real runs is in tests/e2e and tests/slurm."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ftcore.spec.errors import ClusterError
from ftcore.spec.run_dir import RunDir
from launcher.inspect import cancel as module
from launcher.inspect.cancel import cancel
from launcher.inspect.events import holder
from tests.unit.live_processes import environment, is_alive, wait_until
from tests.unit.local_launch import resolved_for
from tests.unit.ssh_server import need_sshd, running_sshd

HOLDS = """
import signal, sys, time
from pathlib import Path
from ftcore.spec.run_dir import RunDir
from launcher.run_folder import locked
for each in sys.argv[2:]:
    signal.signal(int(each), signal.SIG_IGN)
with locked(RunDir(Path(sys.argv[1]))):
    time.sleep(600)
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    folder = RunDir(tmp_path / "run")
    folder.path.mkdir()
    folder.resolved.write_text(resolved_for().to_json())
    return folder


@pytest.fixture
def launcher(run_dir: RunDir, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that owns the folder as a launcher does, and ends of SIGINT; of SIGTERM it does not."""
    script = tmp_path / "launcher_that_waits.py"
    script.write_text(textwrap.dedent(HOLDS))
    process = subprocess.Popen([sys.executable, str(script), str(run_dir.path), str(int(signal.SIGTERM))], env=environment(), stderr=subprocess.DEVNULL)
    wait_until(lambda: (held := holder(run_dir)) is not None and held.pid == process.pid)
    yield process
    process.kill()
    process.wait()


def claim(run_dir: RunDir, text: str) -> int:
    """Owns the folder in the name of another process; the descriptor."""
    handle = os.open(run_dir.lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.pwrite(handle, text.encode(), 0)
    return handle


def test_nothing_to_end(run_dir: RunDir) -> None:
    said: list[str] = []
    cancel(run_dir, said.append, save=False)
    assert said == [f"{run_dir.path}: nothing of it runs or waits"]


def test_a_launch_on_this_host(run_dir: RunDir, launcher: subprocess.Popen[bytes]) -> None:
    said: list[str] = []
    cancel(run_dir, said.append, save=False)
    assert holder(run_dir) is None and launcher.wait(60) == -signal.SIGINT
    assert f"told process {launcher.pid}" in said[0] and "it can go on: ftlaunch --resume" in said[-1]


def test_a_launch_that_does_not_end(run_dir: RunDir, launcher: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    # Time goes on by its own sleep alone, however long it takes.
    slept: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
    said: list[str] = []
    with pytest.raises(ClusterError, match=f"process {launcher.pid} on .* has not ended within 630 s") as caught:
        cancel(run_dir, said.append, save=True)
    assert f"kill -s KILL {launcher.pid}" in caught.value.problems[0].fix and any("waiting for process" in line for line in said)
    assert is_alive(launcher.pid)


def test_a_process_that_is_no_launcher_is_left_alone(run_dir: RunDir) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        handle = claim(run_dir, f"process {other.pid} on {socket.gethostname()}\n")
        with pytest.raises(ClusterError, match="is no launcher on this host"):
            cancel(run_dir, print, save=False)
        assert is_alive(other.pid)
        other.kill()
    with pytest.raises(ClusterError, match="is no launcher on this host"):
        cancel(run_dir, print, save=False)
    os.close(handle)


def test_a_launch_on_a_host_that_ssh_does_not_reach(run_dir: RunDir) -> None:
    handle = claim(run_dir, "process 41 on no-such-host.invalid\n")
    with pytest.raises(ClusterError, match=r"process 41 on no-such-host\.invalid, which can't be told from here") as caught:
        cancel(run_dir, print, save=True)
    assert caught.value.problems[0].fix == "on no-such-host.invalid: kill -s TERM 41"
    os.close(handle)


def test_a_process_of_another_host_is_looked_at_before_it_is_told(
    run_dir: RunDir, launcher: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_sshd()
    (tmp_path / "ssh").mkdir()
    with running_sshd(tmp_path / "ssh"), subprocess.Popen(["sleep", "600"]) as other:
        monkeypatch.setenv("FTLAUNCH_SSH_ARGS", f"-F {tmp_path / 'ssh' / 'ssh_config'}")
        run_dir.lock.write_text(f"process {other.pid} on alpha\n")
        with pytest.raises(ClusterError, match=f"process {other.pid} is no launcher on alpha, yet the folder is owned"):
            cancel(run_dir, print, save=False)
        assert is_alive(other.pid)
        other.kill()
        other.wait()
        with pytest.raises(ClusterError, match=f"process {other.pid} is no launcher on alpha"):
            cancel(run_dir, print, save=False)
        run_dir.lock.write_text(f"process {launcher.pid} on alpha\n")
        said: list[str] = []
        cancel(run_dir, said.append, save=False)
        assert launcher.wait(60) == -signal.SIGINT and said[0].endswith(f"told process {launcher.pid} on alpha to end")


def test_a_launch_that_has_not_said_its_process(run_dir: RunDir) -> None:
    handle = claim(run_dir, "")
    with pytest.raises(ClusterError, match="has not said its process yet"):
        cancel(run_dir, print, save=False)
    os.close(handle)
