"""Texts as YAML that reads back as them: for specs that are written, and for what a message asks the user to write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from ftcore.spec.yaml_strict import parse_scalar

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./:@+-]*")


def quoted(text: str) -> str:
    """A text as a YAML scalar that reads back as itself, also where `${` would be a reference."""
    escaped = text.replace("${", "$${")
    return (
        escaped
        if _PLAIN.fullmatch(escaped) and isinstance(parse_scalar(escaped), str) and not escaped.endswith(":")
        else json.dumps(escaped, ensure_ascii=False)
    )


def mapping(pairs: Iterable[tuple[str, str]]) -> str:
    """`{ours: theirs, ...}`: names that a file gives may hold spaces and signs, or look like numbers."""
    return f"{{{', '.join(f'{name}: {quoted(own)}' for name, own in pairs)}}}"
