"""The trial of connections: where ranks will meet, each host's address there, and whether every host reaches every other one."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.interfaces import interface_of
from launcher.preflight.finding import Connection, Finding, error, warning
from launcher.preflight.master import (
    Master,
    choose_master,
    common_addresses,
    given_master_findings,
    interface_findings,
    is_outward,
    outward_addresses,
)

ALL_PAIRS = 8
"""Hosts up to which each tries each other; beyond, the next one in a ring and the first."""
ANY_PORT = 9
"""For looking at routes: nothing is sent."""

Answers = dict[int, dict[str, Any]]
Ask = Callable[[dict[int, dict[str, Any]], float], Answers]
"""Orders by the host's number, and a limit in seconds -> answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the user asked for."""

    master_addr: str
    master_port: int
    """0: a free one."""
    interfaces: tuple[str, ...]
    """One a host; empty: found."""


@dataclass(slots=True, kw_only=True)
class Trial:
    """What came out of it."""

    master: Master
    master_port: int = 0
    addresses: dict[int, str] = field(default_factory=dict)
    interfaces: dict[int, str] = field(default_factory=dict)
    connections: list[Connection] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def run_trial(names: tuple[str, ...], facts: Mapping[int, Mapping[str, Any]], wish: Wish, named: list[str], ask: Ask) -> Trial:
    """Tries the connections between the hosts that have facts. Host 0 must be among them; `named` is what its ssh name stands for here."""
    own = {place: facts[place].get("interfaces", {}) for place in facts}
    trial = Trial(master=_master(facts, wish, named, ask))
    for place in facts:
        trial.findings += interface_findings(names[place], wish.interfaces[place], own[place])
    if not trial.master.address:
        fix = "give the first host an address on a network that the others share, or name one (--master-addr, --interface)"
        trial.findings.append(error(names[0], "master", f"{names[0]}, the first host, has no address that the others could reach", fix))
        return trial
    address = _address_there(trial, names, own[0], facts, ask)
    if not address or trial.findings:
        return trial
    greetings = {place: secrets.token_hex(32) for place in facts}
    listening = _listen(trial, address, wish, greetings, ask)
    _listen_findings(trial, names, listening, wish)
    targets = _targets(listening, greetings, len(names))
    answers = ask({place: {"do": "connect", "targets": those} for place, those in targets.items() if those}, 7.0)
    for place, those in targets.items():
        _take_results(trial, names, place, those, answers.get(place, {}))
    elsewhere = {names[place]: _other_interfaces(own[place], trial.addresses.get(place, "")) for place in facts}
    trial.findings += connection_findings(trial.connections, {names[place]: wish.interfaces[place] for place in facts}, elsewhere)
    return trial


def _master(facts: Mapping[int, Mapping[str, Any]], wish: Wish, named: list[str], ask: Ask) -> Master:
    """Where ranks meet; by node 0's route to another host when nothing else says."""
    first = facts[0]
    own = first.get("interfaces", {})
    chosen = choose_master(wish.master_addr, wish.interfaces[0], own, named, first.get("reached_at", ""))
    if chosen.address or wish.interfaces[0]:
        return chosen
    common = common_addresses(list(facts.values()))
    others = [address for place in facts if place != 0 for address in outward_addresses(facts[place], common)] or outward_addresses(first, set())
    routes = ask({0: {"do": "route", "targets": others, "port": ANY_PORT}}, 2.0).get(0, {}).get("routes", {})
    source = next((routes[target]["source"] for target in others if target in routes and is_outward(routes[target]["source"])), "")
    return Master(address=source, origin="its address on the way to the others")


def _address_there(trial: Trial, names: tuple[str, ...], own: Mapping[str, Any], places: Iterable[int], ask: Ask) -> str:
    """The IP address of node 0 that the master address means; empty, with findings, when it means none."""
    if not trial.master.is_given:
        return trial.master.address
    answers = ask({place: {"do": "route", "targets": [trial.master.address], "port": ANY_PORT} for place in places}, 4.0)
    routes = {names[place]: answer["routes"][trial.master.address] for place, answer in answers.items() if "routes" in answer}
    trial.findings += given_master_findings(names[0], trial.master, own, routes)
    meant = [address for found in routes.values() for address in found["addresses"]]
    return next((address for address in meant if is_outward(address) and interface_of(address, own)), "")


def _listen(trial: Trial, address: str, wish: Wish, greetings: Mapping[int, str], ask: Ask) -> Answers:
    """Makes every host listen; node 0 at the place where ranks meet, and there alone."""
    orders: dict[int, dict[str, Any]] = {}
    for place, greeting in greetings.items():
        towards = (address, ANY_PORT)
        orders[place] = {"do": "listen", "address": "", "port": 0, "interface": wish.interfaces[place], "towards": towards, "greeting": greeting}
    orders[0] |= {"address": address, "port": wish.master_port}
    answers = ask(orders, 3.0)
    trial.master_port = answers.get(0, {}).get("port", 0)
    for place, answer in answers.items():
        if "error" not in answer:
            trial.addresses[place] = answer["address"]
            trial.interfaces[place] = wish.interfaces[place] or answer["interface"] or ""
    return answers


def _listen_findings(trial: Trial, names: tuple[str, ...], listening: Answers, wish: Wish) -> None:
    for place, answer in listening.items():
        if "error" not in answer:
            if trial.interfaces[place] == "lo":
                what = f"{names[place]} reaches {names[0]} ({trial.master.address}) by loopback: it takes itself for it"
                fix = "name the interface of their network (--interface), or an address (--master-addr)"
                trial.findings.append(error(names[place], "interface", what, fix))
        elif place == 0 and answer.get("errno") == errno.EADDRINUSE:
            what = f"{names[0]}: the master port {wish.master_port} is in use there"
            trial.findings.append(error(names[0], "port", what, "give another one (--master-port), or none: then a free one is found"))
        else:
            what = f"{names[place]} can't listen for connections: {answer['error']}"
            fix = "name the interface of the hosts' network (--interface, or interface= in the hostfile)"
            trial.findings.append(error(names[place], "connection", what, fix))


def _targets(listening: Answers, greetings: Mapping[int, str], count: int) -> dict[int, list[dict[str, Any]]]:
    """Host's number -> what it connects to."""
    there = [place for place in sorted(listening) if "error" not in listening[place]]
    found: dict[int, list[dict[str, Any]]] = {}
    for place in greetings:
        others = [other for other in there if other != place]
        if count > ALL_PAIRS and others:
            following = next((other for other in others if other > place), others[0])
            others = sorted({following, *([0] if 0 in others else [])})
        found[place] = [{"to": other, **_end(listening[other]), "greeting": greetings[other]} for other in others]
    return found


def _end(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {"address": answer["address"], "port": answer["port"]}


def _take_results(trial: Trial, names: tuple[str, ...], place: int, targets: list[dict[str, Any]], answer: Mapping[str, Any]) -> None:
    results = {result["to"]: result for result in answer.get("results", ())}
    for target in targets:
        result = results.get(target["to"], {"error": "the host did not say how it went"})
        trial.connections.append(
            Connection(
                origin=names[place],
                target=names[target["to"]],
                address=target["address"],
                port=target["port"],
                is_master=target["to"] == 0,
                source=result.get("source", ""),
                interface=result.get("interface", ""),
                seconds=result.get("seconds"),
                error=result["error"],
            )
        )


def _other_interfaces(own: Mapping[str, Sequence[str]], tried: str) -> list[str]:
    """Interfaces of a host, with an address each, that might have been used instead of the one that has `tried`."""
    return [f"{name} ({next(filter(is_outward, addresses))})" for name, addresses in own.items() if tried not in addresses and any(map(is_outward, addresses))]


def connection_findings(connections: list[Connection], interfaces: Mapping[str, str], elsewhere: Mapping[str, Sequence[str]]) -> list[Finding]:
    """One finding for all that a host can't reach for one reason; by host, `interfaces` are those asked for, and `elsewhere` what else it has."""
    failed: dict[tuple[str, str, str], list[Connection]] = {}
    findings = []
    for each in connections:
        if each.error:
            failed.setdefault((each.origin, each.interface, each.error), []).append(each)
        elif interfaces.get(each.origin) and each.interface != interfaces[each.origin]:
            what = f"{each.origin} reaches {each.target} ({each.address}) by {each.interface}, not by {interfaces[each.origin]} which it is told to use"
            findings.append(warning(each.origin, "interface", what, "name interfaces of one network on all hosts, and an address of it as master address"))
    for (origin, interface, reason), those in failed.items():
        ends = ", ".join(f"{each.target} at {each.address} port {each.port}" for each in those)
        by = f" by {interface}" if interface else ""
        others = [f"{each.target} also has {', '.join(elsewhere[each.target])}" for each in those[:1] if elsewhere.get(each.target)]
        also = f": {others[0]}" if others else ""
        fix = f"let the hosts reach each other on all TCP ports (gloo and NCCL choose theirs), or use another network (--interface NAME){also}"
        findings.append(error(origin, "connection", f"{origin} can't connect{by} to {ends}: {reason}", fix))
    return findings
