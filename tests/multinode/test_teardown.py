"""Whatever fails on whichever host: everything ends on every host within ten seconds, and the report names what failed and where."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.cluster.hosts import Cluster
from tests.multinode.launches import END_LIMIT_S, LONG, Launcher, Launching, events, write_sitecustomize

RAISES = """
import ctypes, os, threading, time

class PlantedError(RuntimeError):
    def __str__(self):
        return "planted in the middle of an update"

def watch(path):
    while not os.path.exists(path):
        time.sleep(0.02)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.main_thread().ident), ctypes.py_object(PlantedError))

if "RANK" in os.environ:
    threading.Thread(target=watch, args=({trigger!r},), daemon=True).start()
"""
HANGS = """
import os, time
if "RANK" in os.environ:
    time.sleep(1000)
"""


@pytest.fixture
def launching(launcher: Launcher) -> Launching:
    """A run on two hosts, some updates old, that would go on for hours."""
    launching = launcher.start("run", *LONG, hosts=launcher.hostfile())
    launching.wait_for_update(2)
    assert {host for host, _ in launching.cluster.everything()} == set(launching.cluster.names)
    return launching


def test_a_rank_that_raises(launcher: Launcher, tmp_path: Path) -> None:
    # I01
    trigger = tmp_path / "trigger"
    folder = write_sitecustomize(tmp_path / "planted", RAISES.format(trigger=str(trigger)))
    launching = launcher.start("run", *LONG, hosts=launcher.hostfile(words={"node2": f"env.PYTHONPATH={folder}"}))
    launching.wait_for_update(2)
    trigger.touch()
    done = launching.ended(END_LIMIT_S)
    assert done.status == 1
    assert "rank 1 on node2 failed: exit status 1" in done.text
    assert "PlantedError: planted in the middle of an update" in done.text
    assert "attempt_1/rank_1.log" in done.text
    assert "rank 0" not in done.text.partition("failed:")[2]


def test_a_rank_that_is_killed(launching: Launching) -> None:
    os.kill(launching.rank_pid("node2"), signal.SIGKILL)
    done = launching.ended(END_LIMIT_S)
    assert done.status == 128 + signal.SIGKILL
    assert "rank 1 on node2 failed: killed by SIGKILL" in done.text
    assert events(launching.run_dir, "launch_ended")[-1]["status"] == done.status


@pytest.mark.parametrize("host", ["node1", "node2"])
def test_a_host_that_is_killed_with_all_on_it(launching: Launching, cluster: Cluster, host: str) -> None:
    cluster.kill_node(host)
    done = launching.ended(END_LIMIT_S)
    assert done.status == 3
    assert f"host {host} was lost" in done.text


def test_a_host_whose_network_is_cut(launching: Launching, cluster: Cluster) -> None:
    cluster.cut("node2")
    done = launching.ended(END_LIMIT_S, cut="node2")
    assert done.status == 3
    assert re.search(r"host node2 was lost\b", done.text)
    assert "nothing was heard of it for" in done.text


def test_a_launcher_that_is_killed(launching: Launching) -> None:
    launching.process.kill()
    done = launching.ended(END_LIMIT_S)
    assert done.status == -signal.SIGKILL


def test_a_launcher_that_is_interrupted(launching: Launching) -> None:
    launching.process.send_signal(signal.SIGINT)
    done = launching.ended(END_LIMIT_S)
    assert done.status == 128 + signal.SIGINT
    assert "stopped by SIGINT; to go on: ftlaunch --resume" in done.text


def test_a_supervisor_that_is_killed(launching: Launching, cluster: Cluster) -> None:
    (pid,) = (pid for pid, command in cluster.processes("node2").items() if "-m launcher.node" in command and not command.startswith("bash"))
    os.kill(pid, signal.SIGKILL)
    done = launching.ended(END_LIMIT_S)
    assert done.status == 3
    assert "host node2 was lost" in done.text


def test_a_host_that_hangs_while_it_imports(launcher: Launcher, tmp_path: Path) -> None:
    # I03
    folder = write_sitecustomize(tmp_path / "planted", HANGS)
    hosts = launcher.hostfile(words={"node2": f"env.PYTHONPATH={folder}"})
    launching = launcher.start("run", *LONG, "cluster.start_timeout=20", hosts=hosts)
    done = launching.ended()
    assert done.status == 6
    assert "the run hung" in done.text
    assert re.search(r"rank 1 on node2: .*sitecustomize", done.text)
    assert (launching.run_dir.attempt_logs(1) / "stacks" / "rank_1.txt").is_file()


def test_a_host_where_memory_runs_out(launcher: Launcher, cluster: Cluster) -> None:
    cluster.restart_sshd("node2", "-v", "3000000")
    try:
        done = launcher.start("run", *LONG, "batch.micro_batch_tokens=1000000", "--force", samples=1000, hosts=launcher.hostfile()).ended()
    finally:
        cluster.restart_sshd("node2")
    assert done.status == 6
    assert "rank 1 on node2 failed" in done.text
    assert "out of memory" in done.text
