"""The resolved spec: every value decided, where each came from, and on which hosts. Lives in RUN/resolved.json."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ftcore.spec.errors import CheckpointError
from ftcore.spec.sections import Spec

RESOLVED_VERSION = 1
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One line of a hostfile."""

    name: str
    """The name ssh reaches it by."""
    slots: int
    """Ranks on it, one an accelerator."""
    user: str = ""
    """The user for ssh; empty: ssh's own default."""
    slot_ids: tuple[int, ...] = ()
    """The accelerators that are used, `slots` of them, ascending; empty: 0 to slots - 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSpec:
    """A Spec without open questions; the only thing that a rank reads besides ds_config.json."""

    spec: Spec
    hosts: tuple[Host, ...]
    """In rank order."""
    sources: dict[str, str]
    """Key path -> who set it: `default`, `FILE:LINE`, `--zero`, `--set`, `derived`."""
    cache_dir: str
    """Absolute folder for prepared data and converted models."""
    version: int = RESOLVED_VERSION

    @property
    def world_size(self) -> int:
        """Ranks over all hosts."""
        return sum(host.slots for host in self.hosts)

    def to_json(self) -> str:
        """Indented JSON with a final newline; `from_json` gives back an equal value."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> ResolvedSpec:
        """Raises CheckpointError when the text is not a resolved spec of this version."""
        try:
            data = json.loads(text)
            if data.get("version") != RESOLVED_VERSION:
                raise ValueError(f"version {data.get('version')!r}, this ftlaunch reads {RESOLVED_VERSION}")
            return build(ResolvedSpec, data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"not a resolved spec: {error}", where="resolved.json", fix="start the run again from its spec") from error


def load_resolved(path: Path) -> ResolvedSpec:
    """Reads RUN/resolved.json. Raises CheckpointError when it is missing or damaged."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"can't read {path}: {error.strerror}", fix="name a run folder that ftlaunch made") from error
    return ResolvedSpec.from_json(text)


def build(kind: type[T], data: Any) -> T:
    """A value of the dataclass `kind` from plain JSON data of the same shape (lists become tuples).

    Raises TypeError or KeyError when the shape differs: validation is the schema's work, not this function's.
    """
    return typing.cast(T, _convert(kind, data))


def _convert(kind: Any, data: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        if data is None:
            return None
        kind = next(option for option in typing.get_args(kind) if option is not type(None))
        return _convert(kind, data)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        unknown = set(data) - set(hints)
        if unknown:
            raise KeyError(f"unknown keys {sorted(unknown)} for {kind}")
        return kind(**{name: _convert(hints[name], value) for name, value in data.items()})  # type: ignore[operator]
    if origin is tuple:
        item = typing.get_args(kind)[0]
        return tuple(_convert(item, value) for value in data)
    if origin is dict or kind is Any:
        return data
    if kind is float:
        return float(data)
    return data
