"""A dataclass as a JSON file with a version: what one process of a run hands to the next."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ftcore.spec.errors import CheckpointError
from ftcore.spec.resolved import build

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


def stored_text(value: DataclassInstance) -> str:
    """Indented JSON with a final newline; `read_stored` gives back an equal value."""
    return json.dumps(dataclasses.asdict(value), indent=2, ensure_ascii=False) + "\n"


def read_stored(kind: type[T], path: Path, *, version: int, name: str, fix: str, renew: Callable[[dict[str, Any]], dict[str, Any]] = lambda data: data) -> T:
    """The value of the dataclass `kind` in a file that `stored_text` wrote; `name` is what such a file is called,
    and `renew` makes of an older version the present one.

    Raises CheckpointError, with `fix`, when it is missing, damaged or of another version.
    """
    try:
        data = renew(json.loads(path.read_text(encoding="utf-8")))
        if data.get("version") != version:
            raise ValueError(f"version {data.get('version')!r}, this ftlaunch reads {version}")
        return build(kind, data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"not {name}: {error}", where=str(path), fix=fix) from error
