"""Network interfaces of the machine this runs on, and which one the ranks of a host use. Linux; the standard library alone."""

from __future__ import annotations

import ctypes
import ipaddress
import socket
from collections.abc import Iterator, Mapping

GLOO = "GLOO_SOCKET_IFNAME"
NCCL = "NCCL_SOCKET_IFNAME"


class _IfAddr(ctypes.Structure):
    """`struct ifaddrs` of getifaddrs(3)."""


_IfAddr._fields_ = [
    ("next", ctypes.POINTER(_IfAddr)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("addr", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("broadcast", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]

_ADDRESS_AT = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}
"""Address family -> where its address stands in the sockaddr, and how long it is, in bytes."""


def interface_addresses() -> dict[str, tuple[str, ...]]:
    """Interface -> its IPv4 and IPv6 addresses, in the kernel's order. Only interfaces that have one."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_IfAddr)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        return {}
    try:
        found: dict[str, list[str]] = {}
        for name, address in _walk(first):
            found.setdefault(name, []).append(address)
        return {name: tuple(addresses) for name, addresses in found.items()}
    finally:
        libc.freeifaddrs(first)


def _walk(entry: ctypes._Pointer[_IfAddr]) -> Iterator[tuple[str, str]]:
    """Interface and address of each entry that has an IP address."""
    while entry:
        record = entry.contents
        if record.addr:
            family = ctypes.c_ushort.from_address(record.addr).value
            if family in _ADDRESS_AT:
                offset, length = _ADDRESS_AT[socket.AddressFamily(family)]
                yield record.name.decode(), socket.inet_ntop(family, ctypes.string_at(record.addr + offset, length))
        entry = record.next


def source_towards(address: str, port: int) -> str | None:
    """The own address that a connection to `address` (an IP address or a name) begins at; None when nothing leads there. Sends no packet."""
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    for family, kind, protocol, _, target in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0]).partition("%")[0]
        except OSError:
            continue
    return None


def interface_of(address: str, addresses: Mapping[str, tuple[str, ...]]) -> str | None:
    """Which of the interfaces has this IP address; None when none has."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    return next((name for name, own in addresses.items() if wanted in map(ipaddress.ip_address, own)), None)


def interface_towards(address: str, port: int) -> str | None:
    """The interface by which this machine reaches `address`; None when nothing leads there.

    For one of its own addresses: the interface that has it, which is `lo` for loopback alone.
    """
    source = source_towards(address, port)
    return interface_of(source, interface_addresses()) if source is not None else None


def explicit_interface(of_host: str, of_cluster: str, environment: Mapping[str, str]) -> str:
    """The interface that somebody asked for on a host, empty when nobody did: the hostfile's, else cluster.interface, else what gloo or NCCL is told.

    A value for NCCL that names several, or leaves some out (`^docker`), is no choice of one.
    """
    told = (environment.get(GLOO, ""), environment.get(NCCL, "").removeprefix("="))
    return next((name for name in (of_host, of_cluster, *told) if name and not set(name) & set("^,: ")), "")


def interface_environment(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that make gloo and NCCL use the interface `name`, but for those that `environment` sets already."""
    # NCCL takes a bare name for a prefix: eth1 would be eth10 too.
    return {variable: value for variable, value in {GLOO: name, NCCL: f"={name}"}.items() if variable not in environment}
