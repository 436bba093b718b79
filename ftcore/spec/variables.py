"""References to the environment in the values of a spec: `${VAR}`, `${VAR:-default}`, and `$${` for a plain `${`. Names inside names are not read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ftcore.spec.errors import Problem

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top of a document to a value."""
_FORM = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\})?")
"""Name and default are None in `$${`, and in a `${` that begins no reference."""
_WHOLE = re.compile(r"\$\{[^{}]*\}")
_PLAIN = "$${"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variables:
    """The environment that references are looked up in, and what came of it while one file was read."""

    environment: Mapping[str, str]
    is_secret: Callable[[str, str], bool]
    """(name, value) -> whether the value must not be written anywhere."""
    used: dict[KeyPath, list[str]] = field(default_factory=dict)
    """Key -> the references in its value as they were written; for a list, those of its items."""
    unset: dict[KeyPath, list[Problem]] = field(default_factory=dict)
    """Path of a value that could not be completed -> why."""

    def expand(self, text: str, path: KeyPath, file: str, line: int) -> str | None:
        """`text` with each reference replaced; None, with the reason in `unset`, when one can't be."""
        parts: list[str] = []
        end = 0
        for matched in _FORM.finditer(text):
            parts += [text[end : matched.start()], "${" if matched[0] == _PLAIN else self._value(matched, path, file, line)]
            end = matched.end()
        return None if path in self.unset else "".join([*parts, text[end:]])

    def _value(self, matched: re.Match[str], path: KeyPath, file: str, line: int) -> str:
        name, default = matched[1], matched[2]
        if name is None:
            what, fix = "a `${` that begins no reference", "write ${NAME} or ${NAME:-default}; `$${` stands for a plain `${`; no name holds another reference"
            return self._refuse(path, Problem(what=what, fix=fix, file=file, line=line))
        value = self.environment.get(name, "")
        if self.is_secret(name, value):
            what = f"{name} looks like a secret, and what a spec says is written into the run folder"
            fix = "remove the reference: ranks get the launching shell's environment (on other hosts with --env-file)"
            return self._refuse(path, Problem(what=what, fix=fix, file=file, line=line))
        if not value and default is None:
            what = f"the environment variable {name} is {'empty' if name in self.environment else 'not set'}"
            return self._refuse(path, Problem(what=what, fix=f"export {name}=..., or give a default: ${{{name}:-...}}", file=file, line=line))
        key = path[: next((depth for depth, part in enumerate(path) if isinstance(part, int)), len(path))]
        self.used.setdefault(key, []).append(f"${{{name}}}")
        return value or default or ""

    def _refuse(self, path: KeyPath, problem: Problem) -> str:
        self.unset.setdefault(path, []).append(problem)
        return ""


def is_reference(text: str) -> bool:
    """Whether the text is one reference and nothing else, so that its value may be a number or a boolean."""
    return _WHOLE.fullmatch(text) is not None
