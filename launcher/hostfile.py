"""Hostfiles: DeepSpeed's grammar (`HOST slots=N`, `#` comments), read strictly, with every mistake reported at once."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path

from ftcore.spec.errors import ClusterError, Problem
from ftcore.spec.resolved import Host

MAX_SLOTS = 1024
"""More accelerators than any machine has: a larger number is a slip of the hand."""

_FORM = "`HOST slots=N` (N from 1), one host a line"
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\$?")
_SLOTS = re.compile(r"slots=([1-9][0-9]{0,3})")
_SLOTS_LOOKALIKE = re.compile(r"slots?\s*=\s*([0-9]{1,4})(?![0-9.]).*", re.IGNORECASE)


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """The hosts of a hostfile, in its order. Raises ClusterError with every mistake, each with file and line; a file that can't be read is one too."""
    fix = "name a hostfile that exists and can be read; the run is never made smaller instead"
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ClusterError([Problem(what=f"can't read this hostfile: {error.strerror}", file=str(path), fix=fix)]) from error
    except UnicodeDecodeError as error:
        raise ClusterError([Problem(what="this hostfile is not UTF-8 text", file=str(path), fix="save it as UTF-8")]) from error
    return parse_hostfile(text, str(path))


def parse_hostfile(text: str, file: str) -> tuple[Host, ...]:
    """The hosts in `text`; `file` is its name in errors. Raises ClusterError with every mistake."""
    hosts: list[Host] = []
    problems: list[Problem] = []
    first_line: dict[str, int] = {}
    for number, line in _content_lines(text):
        parsed = _parse_line(line)
        if isinstance(parsed, Problem):
            problems.append(Problem(what=parsed.what, fix=parsed.fix, file=file, line=number))
            continue
        earlier = first_line.setdefault(parsed.name.lower(), number)
        if earlier != number:
            what = f"'{line}': host {parsed.name} is already on line {earlier}"
            problems.append(Problem(what=what, fix="give each host one line, with all its slots", file=file, line=number))
        hosts.append(parsed)
    if not hosts and not problems:
        problems.append(Problem(what="this hostfile names no host", fix=f"write {_FORM}, for example `localhost slots=2`", file=file))
    if problems:
        raise ClusterError(problems)
    return tuple(hosts)


def render_hostfile(hosts: tuple[Host, ...]) -> str:
    """The text of a hostfile; `parse_hostfile` reads the hosts back (a selection of slots stands in a comment)."""
    lines = []
    for host in hosts:
        name = f"{host.user}@{host.name}" if host.user else host.name
        chosen = f"  # slots {','.join(map(str, host.slot_ids))} of this host" if host.slot_ids else ""
        lines.append(f"{name} slots={host.slots}{chosen}\n")
    return "".join(lines)


def same_machine_warnings(hosts: tuple[Host, ...]) -> tuple[str, ...]:
    """A line for each pair of names that may be one machine: a short name beside a full one that begins with it."""
    short = {host.name.lower(): host.name for host in hosts if "." not in host.name}
    warnings = []
    for host in hosts:
        first, dot, _ = host.name.lower().partition(".")
        if dot and first in short:
            warnings.append(f"hosts {short[first]} and {host.name} look like one machine; its slots would be counted twice")
    return tuple(warnings)


def _content_lines(text: str) -> Iterator[tuple[int, str]]:
    """Line number and text of each line that holds more than blanks and a comment."""
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        content = line.split("#", 1)[0].strip()
        if content:
            yield number, content


def _parse_line(line: str) -> Host | Problem:
    name, *rest = line.split()
    reason, fix = check_host_name(name.rpartition("@")[2])
    user, at, host = name.rpartition("@")
    if at and not _USER.fullmatch(user):
        reason, fix = f"'{user}' is no user name", "write `USER@HOST slots=N`, or leave the user out"
    if not reason:
        reason, fix = _check_slots(name, rest)
    if reason:
        return Problem(what=f"'{line}': {reason}; expected {_FORM}", fix=fix)
    return Host(name=host, user=user, slots=int(rest[0].removeprefix("slots=")))


def _check_slots(name: str, rest: list[str]) -> tuple[str, str]:
    """Reason and fix for what follows the host on its line; two empty texts when it is right."""
    if not rest:
        return "the number of slots is missing", f"write `{name} slots=N`, N the accelerators (or ranks) on {name}"
    matched = _SLOTS.fullmatch(rest[0])
    if matched and len(rest) == 1 and int(matched[1]) <= MAX_SLOTS:
        return "", ""
    if matched and len(rest) == 1:
        return f"{matched[1]} slots are more than any host has (the most is {MAX_SLOTS})", f"write `{name} slots=N` with the real number"
    if matched:
        return f"'{' '.join(rest[1:])}' follows the slots", f"write `{name} {rest[0]}` and put notes behind a `#`"
    lookalike = _SLOTS_LOOKALIKE.fullmatch(" ".join(rest))
    if lookalike and int(lookalike[1]) == 0:
        return "a host with no slots takes no part", "delete the line, or give it slots=1 or more"
    if lookalike:
        return f"'{' '.join(rest)}' is not `slots=N`", f"write `{name} slots={int(lookalike[1])}`"
    return f"'{' '.join(rest)}' is not `slots=N`", f"write `{name} slots=N`, N the accelerators (or ranks) on {name}"


def check_host_name(name: str) -> tuple[str, str]:
    """Reason and fix when `name` is neither a host name nor an IP address; two empty texts when it is."""
    try:
        ipaddress.ip_address(name)
        return ("", "") if "%" not in name else (f"'{name}' has an interface after the %", "write the address alone, or a host name")
    except ValueError:
        pass
    if "," in name:
        return f"'{name}' holds a comma", "give each host a line of its own"
    if name.startswith("[") and ":" in name:
        return f"'{name}' has brackets", "write an IPv6 address without brackets and without a port"
    if "[" in name or "]" in name:
        return f"'{name}' is a range", "give each host a line of its own: node01, node02, ..."
    if ":" in name:
        return f"'{name}' holds a port", f"write the host alone; a port belongs in ~/.ssh/config (Host {name.partition(':')[0]}, Port N)"
    if re.fullmatch(r"[0-9.]+", name):
        return f"'{name}' is no IPv4 address", "write four numbers from 0 to 255, without leading zeros"
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        return f"'{name}' is no host name", "use letters, digits, '-' and '.'; no part begins or ends with '-'"
    return "", ""
