"""The environment of a run's processes, and files of variables for it (`NAME=VALUE` lines, like DeepSpeed's .deepspeed_env)."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path

from ftcore.spec.errors import Problem, SpecError
from ftcore.spec.events import ATTEMPT, EVENTS_FD
from launcher.processes import LAUNCH_ID

SET_BY_LAUNCHER = frozenset(
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", EVENTS_FD, ATTEMPT, LAUNCH_ID)
)
"""Variables that each rank gets a value of its own for."""

_LINE = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=([^\0]*)")


def launch_environment(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the processes of one more launch get: this process's environment with the user's `given` over it, and a mark of their own."""
    return process_environment(os.environ, given or {}, launch_id=uuid.uuid4().hex, import_root=import_root())


def process_environment(base: Mapping[str, str], given: Mapping[str, str], *, launch_id: str, import_root: str) -> dict[str, str]:
    """`base` with the user's `given` over it, without another launch's rank variables, and with this launch's mark.

    `import_root` (empty: none) goes before what PYTHONPATH holds already.
    """
    # Of torchrun's own, one (TORCHELASTIC_USE_AGENT_STORE) would have rank 0 wait for a store that nobody opens.
    environment = {name: value for name, value in {**base, **given}.items() if name not in SET_BY_LAUNCHER and not name.startswith("TORCHELASTIC_")}
    environment[LAUNCH_ID] = launch_id
    # Modules in the folder that ftlaunch was called in must not stand in for the real ones.
    environment["PYTHONSAFEPATH"] = "1"
    if import_root:
        environment["PYTHONPATH"] = ":".join(part for part in (import_root, environment.get("PYTHONPATH", "")) if part)
    return environment


def import_root() -> str:
    """The folder that this package is imported from, for PYTHONPATH; empty when it is installed where Python looks anyway."""
    root = Path(__file__).resolve().parent.parent
    return "" if root.name in ("site-packages", "dist-packages") else str(root)


def read_env_file(path: Path) -> dict[str, str]:
    """Name -> value. Blank lines and lines that begin with '#' are skipped, a leading `export` too, and one pair of quotes around a value.

    Raises SpecError with every malformed line; values are never printed, since they may be secrets.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SpecError([Problem(what=f"can't read this environment file: {reason}", file=str(path), fix="name a readable file")]) from error
    variables: dict[str, str] = {}
    first_line: dict[str, int] = {}
    problems = []
    for number, line in enumerate((each.strip() for each in text.replace("\r\n", "\n").split("\n")), start=1):
        if not line or line.startswith("#"):
            continue
        matched = _LINE.fullmatch(line)
        what, fix = _mistake(matched, first_line)
        if matched is None or what:
            problems.append(Problem(what=what, fix=fix, file=str(path), line=number))
            continue
        first_line[matched[1]] = number
        variables[matched[1]] = _unquoted(matched[2])
    if problems:
        raise SpecError(problems)
    return variables


def _unquoted(value: str) -> str:
    quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value


def _mistake(matched: re.Match[str] | None, first_line: dict[str, int]) -> tuple[str, str]:
    """What is wrong with a line, and the fix; two empty texts when it is right."""
    if matched is None:
        return "this line is not NAME=VALUE (it is not shown here: it may hold a secret)", "write NAME=VALUE without blanks around the '='"
    name = matched[1]
    if name in first_line:
        return f"{name} is already on line {first_line[name]}", "keep one of the two lines"
    if name in SET_BY_LAUNCHER:
        return f"{name} is set by ftlaunch for each rank", "delete the line"
    return "", ""
