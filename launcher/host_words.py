"""The words of a hostfile's line: which names, slots and settings are right, and what is said of those that aren't."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any

from launcher.variable_names import NAME, refusal

MAX_SLOTS = 1024
"""More accelerators than any machine has: a larger number is a slip of the hand."""
SETTINGS = "`port=N`, `interface=NAME` and `env.NAME=VALUE`"
"""What may follow the slots."""

Mistake = tuple[str, str]
"""Reason and fix."""

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\$?")
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,14}")
_SLOTS = re.compile(r"slots=([1-9][0-9]{0,3})")
_SLOTS_LOOKALIKE = re.compile(r"slots?\s*=\s*([0-9]{1,4})(?![0-9.])(\w*).*", re.IGNORECASE)
_PORT = re.compile("[1-9][0-9]{0,4}")


def check_host_name(name: str) -> Mistake | None:
    """What is wrong when `name` is neither a host name nor an IP address; None when it is one."""
    try:
        ipaddress.ip_address(name)
        return None if "%" not in name else (f"'{name}' has an interface after the %", "write the address alone, or a host name")
    except ValueError:
        pass
    if "," in name:
        return f"'{name}' holds a comma", "give each host a line of its own"
    if name.startswith("[") and ":" in name:
        return f"'{name}' has brackets", "write an IPv6 address without brackets, and a port as `port=N` behind the slots"
    if "[" in name or "]" in name:
        return f"'{name}' is a range", "give each host a line of its own: node01, node02, ..."
    if ":" in name:
        host, _, port = name.partition(":")
        given = port if _PORT.fullmatch(port) else "N"
        return f"'{name}' holds a port", f"write `{host} slots=N port={given}`, or the port into ~/.ssh/config"
    if re.fullmatch(r"[0-9.]+", name):
        return f"'{name}' is no IPv4 address", "write four numbers from 0 to 255, without leading zeros"
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        return f"'{name}' is no host name", "use letters, digits, '-' and '.'; no part begins or ends with '-'"
    return None


def check_user(user: str) -> Mistake | None:
    """What is wrong with the user before a host's name; None: nothing."""
    return None if _USER.fullmatch(user) else (f"'{user}' is no user name", "write `USER@HOST slots=N`, or leave the user out")


def check_interface(name: str) -> Mistake | None:
    """What is wrong with the name of a network interface; None: nothing."""
    return None if _INTERFACE.fullmatch(name) else (f"'{name}' is no network interface", "give one name, as `ip link` shows it, for example eth0")


def check_slots(name: str, rest: list[str]) -> Mistake | None:
    """What is wrong with the word that follows the host on its line; None: nothing."""
    if not rest:
        return "the number of slots is missing", f"write `{name} slots=N`, N the accelerators (or ranks) on {name}"
    matched = _SLOTS.fullmatch(rest[0])
    if matched and int(matched[1]) <= MAX_SLOTS:
        return None
    if matched:
        return f"{matched[1]} slots are more than any host has (the most is {MAX_SLOTS})", f"write `{name} slots=N` with the real number"
    lookalike = _SLOTS_LOOKALIKE.fullmatch(" ".join(rest))
    if lookalike and int(lookalike[1]) == 0 and lookalike[2]:
        return f"'{lookalike[1]}{lookalike[2]}' is no number", f"write `{name} slots=N`, N in plain digits"
    if lookalike and int(lookalike[1]) == 0:
        return "a host with no slots takes no part", "delete the line, or give it slots=1 or more"
    fix = f"write `{name} slots={int(lookalike[1])}`" if lookalike else f"write `{name} slots=N`, N the accelerators (or ranks) on {name}"
    return f"'{' '.join(rest)}' is not `slots=N`", fix


def read_settings(words: list[str]) -> tuple[dict[str, Any], list[Mistake]]:
    """Fields of a Host from the words behind its slots, and every mistake in them. A value of a variable is never shown: it may be a secret."""
    fields: dict[str, Any] = {"port": 0, "interface": "", "environment": {}}
    mistakes: list[Mistake] = []
    seen: set[str] = set()
    for word in words:
        key, equals, value = word.partition("=")
        found = list(_wrong_setting(key, equals, value))
        if key in seen:
            found = [(f"`{key}` is given twice", "keep one of them")]
        seen.add(key)
        mistakes += found
        if found:
            continue
        if key.startswith("env."):
            fields["environment"][key.removeprefix("env.")] = value
        else:
            fields[key] = int(value) if key == "port" else value
    return fields, mistakes


def _wrong_setting(key: str, equals: str, value: str) -> Iterator[Mistake]:
    name = key.removeprefix("env.")
    if equals and key == "port":
        if not _PORT.fullmatch(value) or int(value) > 65535:
            yield f"'{key}={value}' is no port", "write `port=N`, N from 1 to 65535"
    elif equals and key == "interface":
        mistake = check_interface(value)
        if mistake is not None:
            yield mistake
    elif equals and name != key and NAME.fullmatch(name):
        refused = ("holds a NUL character", "write plain text") if "\0" in value else refusal(name, value)
        if refused:
            yield f"{name} {refused[0]}", refused[1]
    else:
        shown = key if "env" in key.lower() else key + equals + value
        yield f"'{shown}' follows the slots", f"here only {SETTINGS} may stand; put notes behind a `#`"
