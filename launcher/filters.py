"""DeepSpeed's --include and --exclude: `NAME[:SLOT,...]` parts joined by '@', over the hosts of a hostfile."""

from __future__ import annotations

import dataclasses
import re

from ftcore.spec.errors import Problem, SpecError
from ftcore.spec.resolved import Host

_FORM = "write `NAME` for all slots of a host or `NAME:0,2` for some, and join hosts with '@'"


def select(hosts: tuple[Host, ...], include: str = "", exclude: str = "") -> tuple[Host, ...]:
    """The hosts and slots that a filter leaves, in the hostfile's order; no filter leaves all.

    A bare host name means all its slots. `USER@NAME` works for a host that the hostfile reaches as USER.
    Raises SpecError with every mistake in the filter, and when nothing is left.
    """
    if include and exclude:
        raise SpecError("--include and --exclude are both given", where="--include", fix="give one of them")
    option, text = ("--include", include) if include else ("--exclude", exclude)
    if not text:
        return hosts
    named = _parse(hosts, text, option)
    left = []
    for host in hosts:
        all_ids = host.slot_ids or tuple(range(host.slots))
        chosen = named.get(host.name, ())
        ids = tuple(slot for slot in all_ids if (slot in chosen) == bool(include))
        if ids:
            left.append(host if ids == all_ids else dataclasses.replace(host, slots=len(ids), slot_ids=ids))
    if not left:
        raise SpecError(f"'{text}' leaves no slot of any host", where=option, fix="leave at least one slot in")
    return tuple(left)


def _parse(hosts: tuple[Host, ...], text: str, option: str) -> dict[str, tuple[int, ...]]:
    """Host name -> the slots that the filter names."""
    by_name = {host.name.lower(): host for host in hosts}
    named: dict[str, tuple[int, ...]] = {}
    problems = []
    for part in _parts(text, by_name):
        name, slots, reason = _parse_part(part, by_name)
        if not reason and name in named:
            reason = f"host {name} is named twice"
        if reason:
            problems.append(Problem(what=f"'{part}': {reason}", where=option, fix=_FORM))
        else:
            named[name] = slots
    if problems:
        raise SpecError(problems)
    return named


def _parts(text: str, by_name: dict[str, Host]) -> list[str]:
    """The text cut at '@', except between a user and a host that the hostfile reaches as that user."""
    parts: list[str] = []
    for piece in text.split("@"):
        host = by_name.get(_name_of(piece, by_name).lower())
        # A user who is called like another host is taken for that host, one who is called like this host for the user.
        if host is not None and host.user and parts and parts[-1] == host.user and by_name.get(host.user.lower(), host) is host:
            parts[-1] = piece
        else:
            parts.append(piece)
    return parts


def _name_of(piece: str, by_name: dict[str, Host]) -> str:
    # An IPv6 address holds colons of its own.
    return piece if piece.lower() in by_name else piece.rpartition(":")[0] or piece


def _parse_part(part: str, by_name: dict[str, Host]) -> tuple[str, tuple[int, ...], str]:
    """Host name, slots and what is wrong (empty: nothing)."""
    name = _name_of(part, by_name)
    host = by_name.get(name.lower())
    if host is None:
        return name, (), f"no host '{name}' in the hostfile; it has {', '.join(known.name for known in by_name.values())}"
    all_ids = host.slot_ids or tuple(range(host.slots))
    if name == part:
        return host.name, all_ids, ""
    texts = part[len(name) + 1 :].split(",")
    if not all(re.fullmatch("[0-9]{1,4}", text) for text in texts):
        return host.name, (), "slots are numbers from 0, with commas between"
    slots = tuple(int(text) for text in texts)
    beyond = [slot for slot in slots if slot not in all_ids]
    if beyond:
        return host.name, (), f"{host.name} has no slot {beyond[0]}; it has {', '.join(map(str, all_ids))}"
    if len(set(slots)) < len(slots):
        return host.name, (), "a slot is named twice"
    return host.name, slots, ""
