"""Interfaces: what this machine really has, and whose word counts when one is chosen."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
import sys

import pytest

from launcher.interfaces import explicit_interface, interface_addresses, interface_environment, interface_of, interface_towards, source_towards


def own_address() -> str:
    """An address of this machine that is not loopback's; skips the test where there is none."""
    addresses = [address for own in interface_addresses().values() for address in own]
    found = [address for address in addresses if not (ipaddress.ip_address(address).is_loopback or ipaddress.ip_address(address).is_link_local)]
    if not found:
        pytest.skip("this machine has no network")
    return found[0]


def test_loopback_is_there_and_reaches_itself() -> None:
    assert "127.0.0.1" in interface_addresses()["lo"]
    assert interface_towards("127.0.0.1", 1) == interface_towards("127.9.9.9", 1) == "lo"
    assert source_towards("localhost", 1) in ("127.0.0.1", "::1")


def test_names_are_the_kernels() -> None:
    assert set(interface_addresses()) <= {name for _, name in socket.if_nameindex()}


def test_an_own_address_belongs_to_its_interface_and_not_to_loopback() -> None:
    address = own_address()
    assert source_towards(address, 1) == address
    assert interface_towards(address, 1) == interface_of(address, interface_addresses()) != "lo"


def test_what_leads_nowhere() -> None:
    assert interface_towards("no-such-name.invalid", 1) is None
    assert source_towards("a" * 70 + ".x", 1) is None
    assert interface_of("no address", {"lo": ("127.0.0.1",)}) is None
    assert interface_of("10.0.0.9", {"lo": ("127.0.0.1",)}) is None


def test_one_address_written_in_two_ways() -> None:
    assert interface_of("2001:db8:0:0::1", {"lo": ("::1",), "ib0": ("10.1.0.1", "2001:db8::1")}) == "ib0"


@pytest.mark.parametrize(
    ("of_host", "of_cluster", "environment", "chosen"),
    [
        ("ib0", "eth0", {"GLOO_SOCKET_IFNAME": "eth1"}, "ib0"),
        ("", "eth0", {"GLOO_SOCKET_IFNAME": "eth1"}, "eth0"),
        ("", "", {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "eth2"}, "eth1"),
        ("", "", {"NCCL_SOCKET_IFNAME": "=eth2"}, "eth2"),
        ("", "", {"NCCL_SOCKET_IFNAME": "^docker,lo"}, ""),
        ("", "", {"NCCL_SOCKET_IFNAME": "eth0,eth1"}, ""),
        ("", "", {}, ""),
    ],
)
def test_who_chooses(of_host: str, of_cluster: str, environment: dict[str, str], chosen: str) -> None:  # A09
    assert explicit_interface(of_host, of_cluster, environment) == chosen


def test_gloo_and_nccl_are_told_the_same() -> None:
    assert interface_environment("eth1", {}) == {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"}
    assert interface_environment("eth1", {"NCCL_SOCKET_IFNAME": "^docker"}) == {"GLOO_SOCKET_IFNAME": "eth1"}


def test_it_needs_the_standard_library_alone() -> None:
    program = "import sys, launcher.interfaces; print(*sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"yaml", "click", "ftcore", "numpy"} & set(ended.stdout.split())
