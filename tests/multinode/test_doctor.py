"""`ftlaunch doctor` on real hosts: what is fit, what is not, and that it is said in seconds, with nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.hosts import Cluster
from tests.own_time import OwnTime
from tests.unit.live_processes import ROOT, wait_until

REACH_LIMIT_S = 12.0
LIMIT_S = 20.0
START_S = 4.0
"""For Python and the spec."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "launcher.cli", "doctor", *arguments]


def environment(cluster: Cluster, cache: Path) -> dict[str, str]:
    return {**os.environ, **cluster.environment, "FTLAUNCH_CACHE": str(cache), "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}


def doctor(cluster: Cluster, folder: Path, *arguments: str) -> tuple[int, str, dict[str, Any], float]:
    """Exit status, what was printed, the report, and the seconds it took of the machine's own time."""
    with OwnTime() as own:
        ended = subprocess.run(
            command("--hosts", str(cluster.folder / "hostfile"), *arguments, "--json", "report.json"),
            env=environment(cluster, folder / "cache"),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert "Traceback" not in ended.stderr, ended.stderr
    report = folder / "report.json"
    return ended.returncode, ended.stdout + ended.stderr, json.loads(report.read_text()) if report.exists() else {}, own.seconds


def errors(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Host and check of each error."""
    assert all(finding["fix"] for finding in report["findings"])
    return [(finding["host"], finding["check"]) for finding in report["findings"] if finding["level"] == "error"]


@contextlib.contextmanager
def hidden(cluster: Cluster, name: str, path: Path) -> Iterator[None]:
    """The host has an empty disk of its own at this folder."""
    cluster.hide(name, path)
    try:
        yield
    finally:
        cluster.run(name, "umount", str(path))


def test_two_hosts_that_are_fit(cluster: Cluster, tmp_path: Path) -> None:
    status, text, report, took = doctor(cluster, tmp_path, "--all-reduce")
    assert status == 0, text
    assert took < LIMIT_S and report["fit"] and errors(report) == []
    assert report["master_addr"] == cluster.address("node1") and report["master_port"] > 0
    assert report["shared"] == {"run": True, "cache": True}
    assert [(each["origin"], each["target"], each["error"]) for each in report["connections"]] == [("node1", "node2", ""), ("node2", "node1", "")]
    assert [each["interface"] for each in report["hosts"]] == ["eth0", "eth0"]
    assert [each["facts"]["hostname"] for each in report["hosts"]] == ["node1", "node2"]
    assert report["all_reduce"]["backend"] == "gloo" and set(report["all_reduce"]["hosts"]) == {"node1", "node2"}
    assert "all-reduce of 1 MiB over 2 ranks (gloo)" in text and "2 hosts asked in" in text
    assert not cluster.everything()
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_host_whose_cable_is_out(cluster: Cluster, tmp_path: Path) -> None:
    cluster.cut("node2")
    status, text, report, took = doctor(cluster, tmp_path)
    assert (status, errors(report)) == (3, [("node2", "reach")]), text
    # Which of the two depends on whether this machine still remembers the host's hardware address.
    assert "node2: it does not answer" in text or "node2: no network leads there" in text
    assert took < REACH_LIMIT_S + START_S
    assert report["hosts"][0]["reached"] and not report["hosts"][1]["reached"]
    assert not cluster.processes("node1")


def test_a_network_that_leads_one_way_only(cluster: Cluster, tmp_path: Path) -> None:  # A11
    cluster.run("node1", "ip", "route", "add", "blackhole", f"{cluster.address('node2')}/32")
    try:
        status, text, report, took = doctor(cluster, tmp_path)
    finally:
        cluster.run("node1", "ip", "route", "del", "blackhole", f"{cluster.address('node2')}/32")
    assert status == 3 and set(errors(report)) == {("node1", "connection"), ("node2", "connection")}, text
    port = report["master_port"]
    assert f"node2 can't connect by eth0 to node1 at {cluster.address('node1')} port {port}: no answer in 5 s" in " ".join(text.split())
    assert f"node1 can't connect to node2 at {cluster.address('node2')} port " in " ".join(text.split())
    assert took < LIMIT_S


def test_what_one_host_lacks(cluster: Cluster, tmp_path: Path) -> None:  # A16
    with hidden(cluster, "node2", tmp_path):
        status, text, report, _ = doctor(cluster, tmp_path)
        assert status == 3 and ("node2", "shared") in errors(report) and report["shared"] == {"run": False, "cache": False}, text
        assert all(host == "node2" for host, _ in errors(report))
    with hidden(cluster, "node2", Path(sys.executable).parent):
        status, text, report, _ = doctor(cluster, tmp_path)
        assert (status, errors(report)) == (3, [("node2", "python")]), text
        assert f"node2: lacks {sys.executable}" in " ".join(text.split())


def test_ports_users_and_interfaces_of_a_hostfile(cluster: Cluster, tmp_path: Path) -> None:  # A07, A14
    hosts = tmp_path / "hosts"
    hosts.write_text("root@node1 slots=1 port=2222 interface=eth0\nroot@node2 slots=1 interface=lo\n")
    status, text, report, _ = doctor(cluster, tmp_path, "--hosts", str(hosts))
    assert status == 3 and errors(report) == [("node2", "interface")], text
    hosts.write_text("root@node1 slots=1 port=2222\nnode2 slots=1 port=2223\n")
    status, text, report, _ = doctor(cluster, tmp_path, "--hosts", str(hosts))
    assert status == 3 and errors(report) == [("node2", "reach")] and "refuses the connection" in text
    status, text, report, _ = doctor(cluster, tmp_path, "--hosts", str(hosts), "--include", "root@node1")
    assert status == 0 and [each["name"] for each in report["hosts"]] == ["node1"], text
    # sshd listens there.
    status, text, report, _ = doctor(cluster, tmp_path, "--master-port", "2222")
    assert status == 3 and errors(report) == [("node1", "port")] and "the master port 2222 is in use there" in text


def test_hosts_named_by_ipv6_addresses(cluster: Cluster, tmp_path: Path) -> None:  # A11
    addresses = [f"fd77:{cluster.network}::{number}" for number in (1, 2)]
    (tmp_path / "hosts").write_text("".join(f"{address} slots=1\n" for address in addresses))
    status, text, report, _ = doctor(cluster, tmp_path, "--hosts", "hosts", "--all-reduce")
    assert status == 0 and report["master_addr"] == addresses[0], text
    assert [each["address"] for each in report["hosts"]] == addresses and [each["interface"] for each in report["hosts"]] == ["eth0", "eth0"]


def test_a_killed_doctor_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    cluster.cut("node2")
    arguments = command("--hosts", str(cluster.folder / "hostfile"))
    process = subprocess.Popen(arguments, env=environment(cluster, tmp_path), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: any("sys.stdin.buffer.read" in each for each in cluster.processes("node1").values()), 60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not cluster.processes("node1"), 60)


@pytest.fixture
def special(cluster_folder: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    kind = request.param
    made = Cluster.up(cluster_folder / f"doctor-{kind}", fabric=kind == "fabric", alone=kind == "alone")
    yield made
    made.down()


@pytest.mark.parametrize("special", ["fabric"], indirect=True)
def test_hosts_with_a_fabric_beside_the_management_network(special: Cluster, tmp_path: Path) -> None:  # A09
    fabric = special.address("node1", fabric=True)
    status, text, report, took = doctor(special, tmp_path)
    assert status == 3 and set(errors(report)) == {("node1", "connection"), ("node2", "connection")}, text
    assert f"node1 also has eth1 ({fabric})" in " ".join(text.split()) and took < LIMIT_S
    for arguments in (["--interface", "eth1"], ["--master-addr", fabric], ["--interface", "eth1", "--master-addr", fabric]):
        status, text, report, _ = doctor(special, tmp_path, *arguments)
        assert status == 0 and report["master_addr"] == fabric, text
        assert [each["interface"] for each in report["hosts"]] == ["eth1", "eth1"]
        assert f"ranks meet at {fabric} port" in text
    status, text, report, _ = doctor(special, tmp_path, "--master-addr", special.address("node2", fabric=True))
    assert status == 3 and ("node1", "master") in errors(report) and "is no address of node1" in " ".join(text.split()), text


@pytest.mark.parametrize("special", ["alone"], indirect=True)
def test_hosts_that_know_only_themselves_by_name(special: Cluster, tmp_path: Path) -> None:  # A11
    address = special.address("node1")
    status, text, report, _ = doctor(special, tmp_path, "--master-addr", address, "--all-reduce")
    assert status == 0 and report["master_addr"] == address == report["all_reduce"]["address"], text
    status, text, report, _ = doctor(special, tmp_path)
    assert status == 0 and report["master_addr"] == address, text
    status, text, report, took = doctor(special, tmp_path, "--master-addr", "node1")
    assert status == 3 and errors(report) == [("node2", "master")] and "the master address node1 is unknown there" in " ".join(text.split()), text
    assert took < LIMIT_S
