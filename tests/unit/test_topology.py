"""Which hosts are this machine, and how many accelerators it has."""

from __future__ import annotations

import getpass
import socket
from pathlib import Path

import pytest

from ftcore.spec.errors import ClusterError
from ftcore.spec.resolved import Host
from launcher import topology
from launcher.topology import check_local_launch, count_visible, is_local, local_slots


@pytest.mark.parametrize(
    ("visible", "installed", "count"),
    [(None, 4, 4), ("", 4, 0), ("0,2", 4, 2), ("0,9,1", 4, 1), ("-1", 4, 0), ("GPU-ab, GPU-cd", 4, 2), ("MIG-1", 1, 1), ("0,1", 0, 0), (None, 0, 0)],
)
def test_visible_accelerators(visible: str | None, installed: int, count: int) -> None:
    assert count_visible(visible, installed) == count


def test_installed_accelerators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert topology._installed_gpus(tmp_path) == 2
    (tmp_path / "empty").mkdir()
    assert topology._installed_gpus(tmp_path / "empty") == 0
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: a (UUID: x)'\necho 'GPU 1: b (UUID: y)'\n")
    program.chmod(0o755)
    assert topology._installed_gpus(tmp_path / "empty") == 2
    program.write_text("no program")
    assert topology._installed_gpus(tmp_path / "empty") == 0


def test_slots_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert local_slots() == 2


def test_names_of_this_machine() -> None:
    own = socket.gethostname()
    for name in ("localhost", "LocalHost", "127.0.0.1", "127.0.0.2", "::1", own, own.upper(), own.split(".")[0]):
        assert is_local(Host(name=name, slots=1)), name
    for name in ("node1", "192.0.2.7", "2001:db8::7", "0.0.0.0", f"{own}x", "localhost.example"):
        assert not is_local(Host(name=name, slots=1)), name


def test_another_user_of_this_machine_is_reached_by_ssh() -> None:
    assert is_local(Host(name="localhost", slots=1, user=getpass.getuser()))
    assert not is_local(Host(name="localhost", slots=1, user="somebody-else"))


def test_one_machine_twice_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"localhost, 127\.0\.0\.1 are all this machine") as caught:
        check_local_launch((Host(name="localhost", slots=2), Host(name="127.0.0.1", slots=1)), 0)
    assert "`localhost slots=3`" in caught.value.problems[0].fix


def test_more_slots_than_accelerators_are_refused() -> None:
    check_local_launch((Host(name="localhost", slots=2),), 2)
    for host in (Host(name="localhost", slots=16), Host(name="localhost", slots=1, slot_ids=(2,))):
        with pytest.raises(ClusterError, match="has 2 accelerators"):
            check_local_launch((host,), 2)
    check_local_launch((Host(name="localhost", slots=16),), 0)
