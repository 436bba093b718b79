"""Training over two hosts, reached in every way that is offered: the same losses as on one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftcore.spec.run_dir import RunDir
from tests.cluster.hosts import Cluster, need, what_is_missing
from tests.multinode.launches import Launcher, updates
from tests.unit.live_processes import ROOT

UPDATES = "train.max_steps=2"


def losses(run_dir: RunDir) -> list[float]:
    return [line["loss"] for line in updates(run_dir)]


@pytest.fixture(scope="module")
def on_one_host(running_cluster: Cluster, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of two ranks of this machine."""
    launcher = Launcher(running_cluster, tmp_path_factory.mktemp("one"), cache)
    _, run_dir = launcher.run("one", UPDATES, "cluster.slots=2")
    return losses(run_dir)


def test_the_hostfile_of_the_readme(launcher: Launcher, on_one_host: list[float]) -> None:
    done, run_dir = launcher.run("eight", UPDATES, hosts=ROOT / "hostfiles" / "2node")
    assert "world size: 8 (node1: 4, node2: 4), ZeRO stage 3" in done.text
    assert losses(run_dir) == pytest.approx(on_one_host, rel=1e-5)
    assert sorted(path.name for path in run_dir.attempt_logs(1).glob("rank_*.log")) == [f"rank_{rank}.log" for rank in range(8)]
    manifest = json.loads((run_dir.checkpoints / "update_00000002" / "manifest.json").read_text())
    assert manifest["world_size"] == 8


def test_ports_users_and_options_of_ssh(launcher: Launcher, on_one_host: list[float]) -> None:
    # A07, A14
    hosts = launcher.folder / "hostfile"
    hosts.write_text("root@node1 slots=1 port=2222\nnode2 slots=1 port=2222 interface=eth0\n")
    arguments = (UPDATES, 'cluster.ssh_options=["-oServerAliveInterval=5", "-v"]')
    _, run_dir = launcher.run("ports", *arguments, hosts=hosts)
    assert losses(run_dir) == pytest.approx(on_one_host, rel=1e-5)
    assert f"Connecting to {launcher.cluster.address('node1')}" in (run_dir.attempt_logs(1) / "node_0.log").read_text()
    assert "port 2222" in (run_dir.attempt_logs(1) / "node_1.log").read_text()


@pytest.mark.parametrize("by", ["pdsh", "deepspeed"])
def test_other_launchers(launcher: Launcher, on_one_host: list[float], by: str) -> None:
    need("" if shutil.which("pdsh") else "not installed: pdsh")
    _, run_dir = launcher.run(by, UPDATES, "--launcher", by, hosts=launcher.hostfile())
    assert losses(run_dir) == pytest.approx(on_one_host, rel=1e-5)


@pytest.fixture
def other_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two hosts on another kind of network: the parameter is `fabric` or `alone`."""
    need(what_is_missing())
    kind = request.param
    cluster = Cluster.up(tmp_path_factory.mktemp(kind) / kind, fabric=kind == "fabric", alone=kind == "alone")
    yield cluster
    cluster.down()


@pytest.mark.parametrize("other_cluster", ["fabric"], indirect=True)
def test_an_address_on_the_second_network_is_used_unchanged(other_cluster: Cluster, tmp_path: Path, cache: Path, on_one_host: list[float]) -> None:
    # A09: the hosts don't see each other on eth0, their first interface
    launcher = Launcher(other_cluster, tmp_path, cache)
    address = other_cluster.address("node1", fabric=True)
    _, run_dir = launcher.run("fabric", UPDATES, "--master_addr", address, "--interface", "eth1", hosts=launcher.hostfile())
    assert losses(run_dir) == pytest.approx(on_one_host, rel=1e-5)
    assert address in run_dir.node_script(1).read_text()


@pytest.mark.parametrize("other_cluster", ["alone"], indirect=True)
def test_hosts_that_know_no_other_by_name(other_cluster: Cluster, tmp_path: Path, cache: Path, on_one_host: list[float]) -> None:
    # A11
    launcher = Launcher(other_cluster, tmp_path, cache)
    address = other_cluster.address("node1")
    _, run_dir = launcher.run("address", UPDATES, "--master_addr", address, hosts=launcher.hostfile())
    assert losses(run_dir) == pytest.approx(on_one_host, rel=1e-5)
    assert address in run_dir.node_script(1).read_text()
    refused = launcher.start("name", UPDATES, "--master_addr", "node1", hosts=launcher.hostfile()).ended()
    assert refused.status == 3
    assert "node2" in refused.text and "node1" in refused.text
