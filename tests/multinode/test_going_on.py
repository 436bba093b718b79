"""Runs over two hosts that are preempted, or lose a host, and go on: to the same parameters, bit for bit where the ranks are the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from ftcore.spec.run_dir import RunDir
from tests.cluster.hosts import Cluster
from tests.multinode.launches import LONG, Launcher, Launching, checkpoints, events, updates
from tests.unit.live_processes import wait_until

TOTAL = 30
SHORT = (f"train.max_steps={TOTAL}", "checkpoint.save_steps=5")


def parameters(run_dir: RunDir) -> dict[str, bytes]:
    """File and tensor -> bytes, of all ranks' states at the end."""
    last = run_dir.checkpoints / f"update_{TOTAL:08d}"
    files = sorted(last.glob("rank_*/state.safetensors"))
    assert files
    return {f"{path.parent.name}/{name}": tensor.tobytes() for path in files for name, tensor in load_file(path).items()}


def losses(run_dir: RunDir) -> dict[int, float]:
    """Update -> its loss; of an update that was done twice, the one that counts."""
    return {line["update"]: line["loss"] for line in updates(run_dir)}


@pytest.fixture(scope="module")
def unbroken(running_cluster: Cluster, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """The run that nothing happened to."""
    launcher = Launcher(running_cluster, tmp_path_factory.mktemp("unbroken"), cache)
    _, run_dir = launcher.run("run", *SHORT, hosts=launcher.hostfile())
    return run_dir


def signal_launcher(signum: int) -> Callable[[Launching], None]:
    return lambda launching: launching.process.send_signal(signum)


def signal_rank(signum: int) -> Callable[[Launching], None]:
    return lambda launching: os.kill(launching.rank_pid("node2"), signum)


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(signal_launcher(signal.SIGTERM), id="launcher-TERM"),
        pytest.param(signal_launcher(signal.SIGUSR2), id="launcher-USR2"),
        pytest.param(signal_rank(signal.SIGUSR2), id="rank-USR2"),
        pytest.param(signal_rank(signal.SIGTERM), id="rank-TERM"),
    ],
)
def test_a_signal_stops_all_ranks_with_one_save(launcher: Launcher, ask: Callable[[Launching], None]) -> None:
    # H03, H04
    launching = launcher.start("run", *LONG, hosts=launcher.hostfile())
    launching.wait_for_update(2)
    ask(launching)
    done = launching.ended()
    assert done.status == 75, done.text
    assert {event["status"] for event in events(launching.run_dir, "rank_exit")} == {75}
    (checkpoint,) = checkpoints(launching.run_dir)
    assert int(checkpoint.removeprefix("update_")) == len(updates(launching.run_dir))
    assert "--resume" in done.text


def test_a_preempted_run_ends_as_if_it_had_not_been(launcher: Launcher, unbroken: RunDir) -> None:
    launching = launcher.start("run", *SHORT, hosts=launcher.hostfile())
    launching.wait_for_update(7)
    launching.process.send_signal(signal.SIGUSR2)
    launching.process.send_signal(signal.SIGTERM)
    assert launching.ended().status == 75
    resumed = launcher.resume(launching.run_dir).ended()
    assert resumed.status == 0, resumed.text
    assert losses(launching.run_dir) == losses(unbroken)
    assert parameters(launching.run_dir) == parameters(unbroken)


def test_a_lost_host_comes_back_and_the_run_ends_the_same(launcher: Launcher, cluster: Cluster, unbroken: RunDir) -> None:
    # H07
    launching = launcher.start("run", *SHORT, "--max-restarts", "1", hosts=launcher.hostfile())
    launching.wait_for_update(8)
    cluster.kill_node("node2")
    wait_until(lambda: "restart 1 of 1" in launching.output.read_text(), 120)
    cluster.start("node2")
    done = launching.ended()
    assert done.status == 0, done.text
    assert "host node2 was lost" in done.text
    assert [event["attempt"] for event in events(launching.run_dir, "launch_started")] == [1, 2]
    assert losses(launching.run_dir) == losses(unbroken)
    assert parameters(launching.run_dir) == parameters(unbroken)


def test_an_elastic_run_ends_on_the_host_that_is_left(launcher: Launcher, cluster: Cluster, unbroken: RunDir) -> None:
    launching = launcher.start("run", *SHORT, "--max-restarts", "1", "--elastic", hosts=launcher.hostfile())
    launching.wait_for_update(8)
    cluster.kill_node("node2")
    done = launching.ended()
    assert done.status == 0, done.text
    assert "going on without node2" in done.text
    assert list(losses(launching.run_dir)) == list(losses(unbroken))
    assert list(losses(launching.run_dir).values()) == pytest.approx(list(losses(unbroken).values()), rel=1e-4)
    assert checkpoints(launching.run_dir)[-1] == f"update_{TOTAL:08d}"


def test_no_restart_after_a_killed_rank_more_often_than_asked(launcher: Launcher) -> None:
    launching = launcher.start("run", "train.max_steps=100000", "checkpoint.save_steps=5", "--max-restarts", "1", hosts=launcher.hostfile())
    for attempt in (1, 2):
        before = 6 if attempt == 1 else len(updates(launching.run_dir)) + 2
        launching.wait_for_update(before)
        os.kill(launching.rank_pid("node1"), signal.SIGKILL)
        wait_until(lambda count=attempt: len(events(launching.run_dir, "launch_ended")) == count, 120)
    done = launching.ended()
    assert done.status == 128 + signal.SIGKILL
    assert done.text.count("rank 0 on node1 failed: killed by SIGKILL") == 2
