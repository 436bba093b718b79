"""`--launcher pdsh` and `--launcher deepspeed`: the same training as by ssh, and the same end everywhere whatever fails."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ftcore.spec.run_dir import RunDir
from tests.cluster.hosts import Cluster
from tests.multinode.launches import END_LIMIT_S, LONG, Launcher, Launching, checkpoints, events, updates
from tests.own_time import OwnTime
from tests.unit.live_processes import wait_until

OTHERS = ("pdsh", "deepspeed")
SECRET = "hf_" + "planted" * 5
FEW = ("train.max_steps=4", "checkpoint.save_steps=0")


@pytest.fixture(params=OTHERS)
def launching(launcher: Launcher, request: pytest.FixtureRequest) -> Launching:
    """A run on two hosts, some updates old, that would go on for hours."""
    launching = launcher.start("run", *LONG, "--launcher", request.param, hosts=launcher.hostfile())
    launching.wait_for_update(2)
    return launching


def losses(run_dir: RunDir) -> list[float]:
    return [update["loss"] for update in updates(run_dir)]


def test_each_trains_as_ssh_does_and_keeps_secrets(launcher: Launcher) -> None:
    # A04, A14
    _, by_ssh = launcher.run("by ssh", *FEW, hosts=launcher.hostfile())
    assert len(losses(by_ssh)) == 4
    for name in OTHERS:
        odd = {"PLAIN_ONE": "a 'b' \"$HOME\"\n%h {1,2} é\\", "HF_TOKEN": SECRET}
        arguments = (*FEW, "--launcher", name, "cluster.forward_env=[PLAIN_ONE]")
        done, run_dir = launcher.run(
            f"by {name} $x;'y", *arguments, hosts=launcher.hostfile(words={"node2": "port=2222"} if name == "pdsh" else {}), environment=odd
        )
        assert losses(run_dir) == losses(by_ssh)
        assert f"not sent to other hosts, since --launcher {name} has no private way: HF_TOKEN; log in on each host" in done.text
        assert events(run_dir, "launch_started")[0]["launcher"] == name
        assert not [path for path in run_dir.path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_a_killed_rank_ends_all(launching: Launching) -> None:
    os.kill(launching.rank_pid("node2"), signal.SIGKILL)
    done = launching.ended(END_LIMIT_S)
    assert done.status == 128 + signal.SIGKILL
    assert "rank 1 on node2 failed: killed by SIGKILL" in done.text


def test_a_killed_launcher_leaves_nothing(launching: Launching) -> None:
    launching.process.kill()
    assert launching.ended(END_LIMIT_S).status == -signal.SIGKILL
    # Nobody waits for these any more.
    wait_until(lambda: not local_processes(launching.run_dir), 60)


def test_an_interrupted_launcher_leaves_nothing(launching: Launching) -> None:
    launching.process.send_signal(signal.SIGINT)
    done = launching.ended(END_LIMIT_S)
    assert done.status == 128 + signal.SIGINT
    assert "stopped by SIGINT; to go on: ftlaunch --resume" in done.text
    assert not local_processes(launching.run_dir)


def test_a_host_whose_network_is_cut(launching: Launching, cluster: Cluster) -> None:
    cluster.cut("node2")
    with OwnTime() as own:
        assert launching.status(own, END_LIMIT_S) == 3
    # What runs on node2 waits until its connection ends.
    wait_until(lambda: not cluster.processes("node1"), 60)
    text = launching.output.read_text()
    assert "host node2 was lost" in text and "nothing was heard of it for" in text
    assert "could not look at node2" in text


def test_a_preempted_run_saves(launching: Launching) -> None:
    launching.process.send_signal(signal.SIGUSR2)
    done = launching.ended()
    assert done.status == 75, done.text
    assert "preempted by SIGUSR2: what was trained is saved" in done.text
    assert len(checkpoints(launching.run_dir)) == 1


def test_deepspeed_whose_parts_are_killed(launcher: Launcher, cluster: Cluster) -> None:
    # I05
    for part in ("deepspeed.launcher.launch", "deepspeed.launcher.runner"):
        launching = launcher.start(part, *LONG, "--launcher", "deepspeed", hosts=launcher.hostfile())
        launching.wait_for_update(2)
        there = cluster.processes("node2") if part.endswith("launch") else local_processes(launching.run_dir)
        for pid in (pid for pid, command in there.items() if f"-m {part}" in command and "rank_start" in command and "bash" not in command.split()[0]):
            os.kill(pid, signal.SIGKILL)
        done = launching.ended(END_LIMIT_S)
        assert done.status not in (0, 75), done.text
        assert "node2" in done.text


def local_processes(run_dir: RunDir) -> dict[int, str]:
    """Pid -> command line of what this machine runs for a run, by the folder's name in it, plain or as DeepSpeed gets it."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(run_dir.path) in command:
                found[int(entry.name)] = command
    return found
