"""Where ranks meet, and by which interface each host is part of it. Pure functions over what the hosts said."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.preflight.finding import Finding, error

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """The address, and why it is that one."""

    address: str
    """Empty: none could be found."""
    origin: str
    is_given: bool = False
    """Whether the user chose it."""


def choose_master(given: str, interface: str, own: Mapping[str, Sequence[str]], named: Sequence[str], reached_at: str) -> Master:
    """The address by which other hosts reach node 0.

    `given` is used unchanged. Else: the first address of `interface` when one is asked for; an address that node 0's ssh name stands for (`named`), when node 0
    has it; the address at which ssh reached it. `own` are node 0's interfaces with their addresses.
    """
    if given:
        return Master(address=given, origin="as asked for", is_given=True)
    if interface:
        usable = [address for address in own.get(interface, ()) if not _is_link_local(address)]
        first = next((address for address in usable if ":" not in address), usable[0] if usable else "")
        return Master(address=first, origin=f"the address of its interface {interface}")
    everything = {address for addresses in own.values() for address in addresses}
    for address in named:
        if address in everything and is_outward(address):
            return Master(address=address, origin="what its name stands for")
    if reached_at in everything and is_outward(reached_at):
        return Master(address=reached_at, origin="where ssh reaches it")
    return Master(address="", origin="")


def common_addresses(facts: Sequence[Facts]) -> set[str]:
    """Addresses that more than one host has (docker's bridge, a virtual gateway): no way to a certain host."""
    seen: set[str] = set()
    common: set[str] = set()
    for each in facts:
        own = {address for addresses in each.get("interfaces", {}).values() for address in addresses}
        common |= seen & own
        seen |= own
    return common


def outward_addresses(facts: Facts, common: set[str]) -> list[str]:
    """Addresses of a host that others may reach it by: where ssh reached it first, then its own ones, IPv4 before IPv6."""
    own = [address for addresses in facts.get("interfaces", {}).values() for address in addresses]
    usable = sorted((address for address in own if is_outward(address) and address not in common), key=lambda address: ":" in address)
    first = facts.get("reached_at", "")
    return [first, *[address for address in usable if address != first]] if first in usable else usable


def is_outward(address: str) -> bool:
    """Whether an address can mean this host to another one: not loopback, not link-local, not unspecified."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified)


def interface_findings(host: str, interface: str, own: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """What is wrong with the interface that was asked for on a host; nothing when none was."""
    if not interface:
        return
    if interface not in own:
        has = ", ".join(f"{name} ({', '.join(addresses)})" for name, addresses in own.items())
        what = f"{host} has no interface {interface} with an address; it has {has}"
        yield error(host, "interface", what, "name one of these (interface=NAME behind the host's slots)")
    elif not any(map(is_outward, own[interface])):
        yield error(host, "interface", f"{host}: its interface {interface} has no address that others can use", f"name another, or give {interface} an address")


def given_master_findings(host: str, master: Master, own: Mapping[str, Sequence[str]], routes: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """What is wrong with the address that the user chose; `routes` says, per host, what it stands for there."""
    if not master.is_given:
        return
    everything = {address for addresses in own.values() for address in addresses}
    has = ", ".join(f"{address} ({interface})" for interface, addresses in own.items() for address in addresses if is_outward(address))
    fix = f"give one that {host}, the first host, has: {has or 'it has none'}; or give none: then it is found"
    for name, found in routes.items():
        addresses = found["addresses"]
        stands = "" if addresses == [master.address] else f" ({', '.join(addresses)} on {name})"
        if not addresses:
            what = f"{name}: the master address {master.address} is unknown there"
            yield error(name, "master", what, "give an IP address (--master-addr), or make the name known on every host")
        elif not any(map(is_outward, addresses)):
            # On the first host itself a name may well stand for loopback.
            if name != host:
                yield error(name, "master", f"{name}: the master address {master.address}{stands} means {name} itself there", fix)
        elif not set(addresses) & everything:
            yield error(name, "master", f"the master address {master.address}{stands} is no address of {host}", fix)


def _is_link_local(address: str) -> bool:
    return ipaddress.ip_address(address).is_link_local
