"""Hostfiles: DeepSpeed's grammar (`HOST slots=N`, `#` comments) and settings of a host behind it, read strictly, with every mistake reported at once."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ftcore.spec.errors import ClusterError, Problem
from ftcore.spec.resolved import Host
from launcher.host_words import Mistake, check_host_name, check_slots, check_user, read_settings

_FORM = "`HOST slots=N` (N from 1), one host a line"
_CONTENT = re.compile(r"""(?:[^#'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*"|['"\\])*""")
"""What stands before a comment: a `#` in quotes begins none."""


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
        if not isinstance(parsed, Host):
            problems += [Problem(what=f"'{_shown(line)}': {reason}; expected {_FORM}", fix=fix, file=file, line=number) for reason, fix in parsed]
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
        port = f" port={host.port}" if host.port else ""
        interface = f" interface={host.interface}" if host.interface else ""
        variables = "".join(f" env.{key}={shlex.quote(value)}" for key, value in host.environment.items())
        chosen = f"  # slots {','.join(map(str, host.slot_ids))} of this host" if host.slot_ids else ""
        lines.append(f"{name} slots={host.slots}{port}{interface}{variables}{chosen}\n")
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
        content = _CONTENT.match(line)
        if content and content[0].strip():
            yield number, content[0].strip()


def _parse_line(line: str) -> Host | list[Mistake]:
    name, *rest = line.split(maxsplit=2)
    user, at, host = name.rpartition("@")
    mistakes = [check_host_name(host), check_user(user) if at else None]
    slots_mistake = check_slots(name, _shown(line).split()[1:])
    mistakes.append(slots_mistake)
    settings, wrong = _settings(rest[1]) if len(rest) == 2 and slots_mistake is None else ({}, [])
    found = [mistake for mistake in mistakes if mistake is not None] + wrong
    return found or Host(name=host, user=user, slots=int(rest[0].removeprefix("slots=")), **settings)


def _settings(text: str) -> tuple[dict[str, Any], list[Mistake]]:
    try:
        words = shlex.split(text)
    except ValueError:
        return {}, [("a quote is not closed behind the slots", "quote values as for a shell: env.NAME='a value'")]
    return read_settings(words)


def _shown(line: str) -> str:
    """The line without the values of its variables."""
    return re.sub(r"(\benv\.[^\s=]*=).*", r"\1...", line)
