"""The hosts of these tests are what they say they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.hosts import SCRIPT, Cluster
from tests.own_time import OwnTime
from tests.unit.live_processes import ROOT, is_alive, wait_until


def test_each_has_its_name_its_network_and_its_processes(cluster: Cluster) -> None:
    for name in cluster.names:
        seen = cluster.ssh(name, "hostname; ip -4 -o addr show dev eth0; cat /proc/[0-9]*/comm | sort | uniq -c")
        assert seen.returncode == 0, seen.stderr
        assert seen.stdout.splitlines()[0] == name
        assert f"{cluster.address(name)}/24" in seen.stdout
        assert "python" not in seen.stdout
    assert cluster.ssh("node1", "getent hosts node2").stdout.split() == [cluster.address("node2"), "node2"]
    assert not cluster.everything()


def test_ports_and_users_of_ssh(cluster: Cluster) -> None:
    for words in (["-p", "2222", "node1"], ["root@node1"], [cluster.address("node1")], [f"fd77:{cluster.network}::1"]):
        done = subprocess.run(["ssh", "-F", str(cluster.ssh_config), *words, "hostname"], capture_output=True, text=True, check=False, timeout=60)
        assert (done.stdout, done.stderr) == ("node1\n", "")


def test_processes_are_listed_killed_and_not_left(cluster: Cluster) -> None:
    with subprocess.Popen(["ssh", "-F", str(cluster.ssh_config), "node2", "sleep 1000 & exec sleep 1001"]) as session:
        wait_until(lambda: "sleep 1000" in cluster.processes("node2").values(), 60)
        commands = list(cluster.processes("node2").values())
        assert "sleep 1001" in commands
        assert not cluster.processes("node1")
        pid = next(pid for pid, command in cluster.processes("node2").items() if command == "sleep 1000")
        cluster.kill_node("node2")
        assert not is_alive(pid)
        assert session.wait(timeout=60) == 255
    assert cluster.ssh("node2", "true", connect_s=3).returncode == 255
    cluster.start("node2")
    assert cluster.ssh("node2", "hostname").stdout == "node2\n"


def test_a_cut_is_silent_and_can_be_mended(cluster: Cluster) -> None:
    cluster.cut("node1")
    probe = ["ssh", "-F", str(cluster.ssh_config), "-oConnectTimeout=1", "node1", "true"]
    assert subprocess.run(probe, capture_output=True, check=False, timeout=60).returncode == 255
    cluster.mend("node1")
    wait_until(lambda: cluster.ssh("node1", "true").returncode == 0, 60)


def test_an_empty_disk_and_a_limit(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cluster.hide("node2", tmp_path)
    assert cluster.ssh("node1", f"ls {tmp_path}").stdout == "file\n"
    assert cluster.ssh("node2", f"ls {tmp_path}").stdout == ""
    cluster.restart_sshd("node1", "-v", "3000000")
    assert cluster.ssh("node1", "ulimit -v").stdout == "3000000\n"
    cluster.restart_sshd("node1")
    assert cluster.ssh("node1", "ulimit -v").stdout == "unlimited\n"


@pytest.mark.parametrize("kind", ["fabric", "alone"])
def test_other_kinds_of_networks(cluster_folder: Path, kind: str) -> None:
    cluster = Cluster.up(cluster_folder / kind, fabric=kind == "fabric", alone=kind == "alone")
    try:
        # Where nobody answers the kernel gives up in some seconds.
        reached = {network: cluster.ssh("node1", f"timeout 20 bash -c '</dev/tcp/{address}/22'").returncode == 0 for network, address in networks(cluster)}
        assert reached == ({"management": False, "fabric": True} if kind == "fabric" else {"management": True, "fabric": False})
        assert (cluster.ssh("node1", "getent hosts node2").returncode == 0) == (kind == "fabric")
        assert cluster.ssh("node2", "getent hosts node2").returncode == 0
    finally:
        cluster.down()
    assert not leftovers(cluster.folder)


def networks(cluster: Cluster) -> list[tuple[str, str]]:
    return [("management", cluster.address("node2")), ("fabric", cluster.address("node2", fabric=True))]


def test_hosts_of_a_killed_run_are_taken_away_by_the_next(cluster_folder: Path) -> None:
    folder = cluster_folder / "killed"
    body = f"from tests.cluster.hosts import Cluster; from pathlib import Path; import os; Cluster.up(Path({str(folder)!r}), 1); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", body], cwd=ROOT, check=False, timeout=180, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert leftovers(folder)
    subprocess.run([str(SCRIPT), "clean"], check=True, timeout=180)
    assert not leftovers(folder)


def leftovers(folder: Path) -> list[str]:
    """Links of the cluster, and the processes that hold its hosts."""
    network = (folder / "network").read_text().strip()
    own = (f"ftbr{network}", f"ftbr{network}f")
    links = [name for name in os.listdir("/sys/class/net") if name in own or name.startswith((f"fv{network}n", f"fv{network}f"))]
    holders = subprocess.run(["pgrep", "-f", "--", f"hosts.sh hold {folder} "], capture_output=True, text=True, check=False).stdout.split()
    return links + holders


def test_up_is_fast(cluster_folder: Path) -> None:
    with OwnTime() as own:
        Cluster.up(cluster_folder / "three", 3).down()
    assert own.seconds < 20
