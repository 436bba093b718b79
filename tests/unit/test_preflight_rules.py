"""What preflight makes of the facts of hosts: each rule, its level, and that every finding has a fix."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.preflight.across_rules import across_findings, clock_findings
from launcher.preflight.finding import Finding
from launcher.preflight.host_rules import host_findings
from launcher.preflight.master import Master, choose_master, common_addresses, given_master_findings, interface_findings, outward_addresses
from launcher.preflight.unreachable import Silence, explain
from tests.unit.preflight_facts import GIB, facts, gpus, host

CODE = "0123456789abcdef"


def only(findings: list[Finding]) -> Finding:
    """The one finding, which has a fix."""
    (finding,) = findings
    assert finding.fix and finding.what
    return finding


def test_healthy_hosts_give_no_findings() -> None:
    told = [facts("alpha", 1, **gpus(2)), facts("beta", 2, **gpus(2))]
    assert not host_findings(host("alpha"), told[0], 4) + host_findings(host("beta"), told[1], 4)
    assert not across_findings([(host("alpha"), told[0]), (host("beta"), told[1])], CODE)


@pytest.mark.parametrize(
    ("changes", "slots", "level", "said"),
    [
        (gpus(1), 2, "error", "alpha has 2 slots, but 1 accelerators that a rank may use"),
        ({**gpus(1), "installed": 8}, 2, "error", "1 accelerators of its 8 (CUDA_VISIBLE_DEVICES leaves no more)"),
        ({"installed": 4}, 2, "warning", "none of its 4 accelerators may be used"),
        ({"cores": 2}, 3, "warning", "3 slots on 2 CPU cores"),
        ({"accelerator_note": "nvidia-smi: no driver"}, 2, "warning", "could not be asked: nvidia-smi: no driver"),
        (gpus(2, free=20 * GIB), 1, "warning", "accelerator 0 has 20.0 GiB of 140.0 GiB free"),
        ({"memory_available": GIB}, 2, "warning", "1.0 GiB of memory left for 2 ranks"),
        ({**gpus(2), "shm_total": 64 * 2**20}, 2, "warning", "/dev/shm has 64 MiB"),
        ({"folders": {"work": {"path": "/w", "exists": False, "writable": False}}}, 2, "error", "no folder /w (the working folder)"),
        ({"folders": {"run": {"path": "/r", "exists": True, "writable": False, "free": 0}}}, 2, "error", "/r (the run folder's place) can't be written to"),
        ({"folders": {"cache": {"path": "/c", "exists": True, "writable": True, "free": GIB}}}, 2, "warning", "/c (the cache) has 1.0 GiB free"),
        ({"folders": {"run": {"path": "/r", "exists": True, "writable": True, "free": 2**20}}}, 2, "error", "/r (the run folder's place) has 1 MiB free"),
        ({"limits": {"nofile": [100, 4096]}}, 2, "error", "may open 100 files"),
        ({"limits": {"nofile": [512, 4096]}}, 2, "warning", "1024 are wanted for 4 ranks"),
        ({**gpus(2), "infiniband": ["mlx5_0"], "limits": {"memlock": [65536, 65536]}}, 2, "warning", "RDMA over mlx5_0"),
        ({"limits": {"nproc": [200, 200]}}, 2, "warning", "may have 200 processes and threads"),
        ({"versions": {"torch": "", "deepspeed": ""}}, 2, "error", "/opt/env/bin/python has no torch, no deepspeed"),
        ({"late": ["folder cache"]}, 2, "error", "the cache folder did not answer in time"),
        ({"late": ["name beta"]}, 2, "warning", "looking up 'beta' takes very long"),
        ({"late": ["versions"]}, 2, "warning", "its versions could not be found out in time"),
        ({"failed": {"machine": "OSError: gone"}}, 2, "warning", "its machine could not be found out: OSError: gone"),
    ],
)
def test_one_host(changes: dict[str, Any], slots: int, level: str, said: str) -> None:
    finding = only(host_findings(host("alpha", slots), facts(**changes), 4))
    assert finding.level == level and said in finding.what and finding.host == "alpha"


def test_slots_that_were_chosen_must_exist() -> None:
    assert "alpha has 4 slots" in only(host_findings(host("alpha", 1, 3), facts(**gpus(2)), 1)).what
    assert not host_findings(host("alpha", 1, 1), facts(**gpus(2)), 1)
    assert not host_findings(host("alpha", 64), facts(cores=64, memory_available=100 * GIB), 64)


def test_a_host_that_could_tell_nothing_breaks_no_rule() -> None:
    nothing = {"late": ["machine"], "failed": {}}
    assert [finding.level for finding in host_findings(host(), nothing, 2)] == ["warning"]
    assert not across_findings([(host(), nothing), (host("beta"), facts("beta", 2))], CODE)


@pytest.mark.parametrize(
    ("changes", "level", "said"),
    [
        ({"python": "3.12.1"}, "error", "python differs: beta has 3.12, 2 others 3.11"),
        ({"python": "3.11.9"}, "warning", "python's patch level differs: beta has 3.11.9, 2 others 3.11.7"),
        ({"versions": {"torch": "2.9"}}, "error", "torch differs: beta has 2.9, 2 others 2.13.0"),
        ({"versions": {"deepspeed": "0.18"}}, "error", "deepspeed differs"),
        ({"versions": {"transformers": "5.0"}}, "warning", "transformers differs"),
        ({"versions": {"peft": ""}}, "warning", "peft differs: beta has none"),
        ({"versions": {"nccl": "2.20"}}, "warning", "NCCL differs"),
        ({"driver": "535"}, "warning", "the driver differs: beta has 535"),
        ({"machine": "aarch64"}, "warning", "the processor's kind differs"),
        (gpus(2, "NVIDIA A100") | {"driver": "580.1"}, "warning", "the accelerators' model differs: beta has NVIDIA A100"),
        ({"code": "f" * 16}, "error", "ftlaunch's code in /data/ftlaunch is not the same as here (digest ffffffffffffffff, here 0123456789abcdef)"),
        ({"code": "", "code_root": ""}, "error", "beta has no ftlaunch where /opt/env/bin/python looks"),
        ({"accelerators": [], "installed": 0}, "error", "beta have no accelerator that a rank may use, alpha, gamma have"),
        ({"identity": "alpha"}, "warning", "alpha and beta are one machine"),
    ],
)
def test_hosts_that_differ(changes: dict[str, Any], level: str, said: str) -> None:
    told = [facts("alpha", 1, **gpus(2)), facts("beta", 2, **{**gpus(2), **changes}), facts("gamma", 3, **gpus(2))]
    finding = only(across_findings([(host(each["hostname"]), each) for each in told], CODE))
    assert finding.level == level and said in finding.what and finding.host in ("beta", "")


def test_clocks() -> None:
    assert not clock_findings({"alpha": (1.9, 0.0), "beta": (-5.0, 4.0)})
    ahead, behind = clock_findings({"alpha": (2.5, 0.1), "beta": (-400.0, 0.1)})
    assert "2.5 s ahead of" in ahead.what and ahead.level == behind.level == "warning"
    assert "400.0 s behind" in behind.what and "munge" in behind.what


OWN = {"lo": ["127.0.0.1"], "eth0": ["192.0.2.5", "fe80::1"], "eth1": ["198.51.100.5"], "ib0": ["fe80::2"], "six": ["2001:db8::5"]}


@pytest.mark.parametrize(
    ("given", "interface", "named", "reached_at", "address"),
    [
        # A09: what is asked for stays as it is; an interface has its own address.
        ("198.51.100.5", "", ["192.0.2.5"], "192.0.2.5", "198.51.100.5"),
        ("alpha.fabric", "eth0", ["192.0.2.5"], "192.0.2.5", "alpha.fabric"),
        ("", "eth1", ["192.0.2.5"], "192.0.2.5", "198.51.100.5"),
        ("", "six", [], "", "2001:db8::5"),
        ("", "none", ["192.0.2.5"], "", ""),
        ("", "ib0", ["192.0.2.5"], "", ""),
        ("", "", ["127.0.1.1", "198.51.100.5"], "192.0.2.5", "198.51.100.5"),
        # A port that is forwarded: ssh's address is another machine's.
        ("", "", ["203.0.113.9"], "192.0.2.5", "192.0.2.5"),
        ("", "", ["203.0.113.9"], "127.0.0.1", ""),
        ("", "", [], "", ""),
    ],
)
def test_where_ranks_meet(given: str, interface: str, named: list[str], reached_at: str, address: str) -> None:
    chosen = choose_master(given, interface, OWN, named, reached_at)
    assert chosen.address == address and chosen.is_given == bool(given)


def test_addresses_that_say_nothing() -> None:
    one = facts("alpha", 1, interfaces={"docker0": ["172.17.0.1"], "eth1": ["2001:db8::1", "198.51.100.1"]}, reached_at="198.51.100.1")
    two = facts("beta", 2, interfaces={"docker0": ["172.17.0.1"]})
    common = common_addresses([one, two])
    assert common == {"172.17.0.1", "127.0.0.1", "::1"}
    assert outward_addresses(one, common) == ["198.51.100.1", "10.0.0.1", "2001:db8::1"]


def test_interfaces_that_were_asked_for() -> None:
    assert not list(interface_findings("alpha", "", OWN)) and not list(interface_findings("alpha", "eth1", OWN))
    assert "no interface eth9 with an address; it has lo (127.0.0.1), eth0 (192.0.2.5" in only(list(interface_findings("alpha", "eth9", OWN))).what
    assert "no address that others can use" in only(list(interface_findings("alpha", "ib0", OWN))).what


def test_a_master_address_that_is_not_the_first_hosts() -> None:  # A09, A11
    master = Master(address="fabric", origin="", is_given=True)

    def found(**addresses: list[str]) -> list[Finding]:
        return list(given_master_findings("alpha", master, OWN, {name: {"addresses": those} for name, those in addresses.items()}))

    assert not found(alpha=["127.0.1.1"], beta=["198.51.100.5"])
    assert "beta: the master address fabric is unknown there" in only(found(alpha=["198.51.100.5"], beta=[])).what
    assert "fabric (198.51.100.9 on beta) is no address of alpha" in only(found(beta=["198.51.100.9"])).what
    assert "fabric (127.0.0.1 on beta) means beta itself there" in only(found(beta=["127.0.0.1"])).what
    assert not list(given_master_findings("alpha", Master(address="x", origin=""), OWN, {"beta": {"addresses": []}}))


@pytest.mark.parametrize(
    ("status", "shell_ran", "stderr", "check", "said", "fix"),
    [
        (255, False, "ssh: Could not resolve hostname beta: Name or service not known", "reach", "its name is unknown here", "HostName"),
        (255, False, "No host key is known for beta.\nHost key verification failed.", "reach", "its host key is not known", "ssh-keygen -R beta"),
        (255, False, "me@beta: Permission denied (publickey).", "reach", "does not let this user in", "ssh-copy-id"),
        (255, False, "ssh: connect to host beta port 22: Connection refused", "reach", "no ssh server listens", "port=N"),
        (255, False, "ssh: connect to host beta port 22: No route to host", "reach", "no network leads there", "is up"),
        (255, False, "ssh: connect to host beta port 22: Connection timed out", "reach", "does not answer", "firewall"),
        (255, False, "kex_exchange_identification: read: Connection reset by peer", "reach", "closed the connection", "MaxStartups"),
        (255, False, "command-line: line 0: Bad configuration option: foo", "reach", "does not take its options", "FTLAUNCH_SSH_ARGS"),
        (255, False, "something new", "reach", "no shell started there (exit status 255)", "login shell"),
        (None, False, "", "reach", "no answer within 11 s", "ssh beta true"),
        (127, True, "bash: line 1: exec: /opt/python: not found", "python", "beta: lacks /opt/python", "install it at that path on beta"),  # A16
        (1, True, "/opt/python: Command not found.", "python", "beta: lacks /opt/python", "install it"),
        (1, True, "Python 3.9.2 is older than 3.11", "python", "its /opt/python is older than 3.11", "same environment"),
        (None, True, "", "python", "its shell answered, /opt/python did not", "hangs"),
        (1, True, "ImportError: no json", "python", "/opt/python ended there with status 1 (ImportError: no json)", "--version"),
    ],
)
def test_why_a_host_is_silent(status: int | None, shell_ran: bool, stderr: str, check: str, said: str, fix: str) -> None:
    silence = Silence(host="beta", by_hand="ssh beta", python="/opt/python", status=status, shell_ran=shell_ran, stderr=stderr, waited_s=11.0)
    finding = explain(silence)
    assert (finding.host, finding.check, finding.level) == ("beta", check, "error")
    assert said in finding.what and fix in finding.fix
    assert "{" not in finding.what + finding.fix


def test_what_a_host_says_reaches_the_terminal_harmlessly() -> None:
    evil = "\x1b]0;owned\x07 {host.name} " + "x" * 500
    finding = explain(Silence(host="beta", by_hand="bash", python="/p", status=1, shell_ran=False, stderr=evil, waited_s=1.0))
    assert "\x1b" not in finding.what and "{host.name}" in finding.what and len(finding.what) < 300
