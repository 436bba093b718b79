"""The resolved spec: every value decided, where each came from, and on which hosts. Lives in RUN/resolved.json."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from dataclasses import dataclass, field
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
    port: int = 0
    """The port of its ssh server; 0: ssh's own default."""
    interface: str = ""
    """The network interface of NCCL and gloo on it; empty: cluster.interface, or found."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of its ranks, over those of all hosts."""


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
            if not isinstance(data, dict):
                raise TypeError("it is no JSON object")
            if data.get("version") != RESOLVED_VERSION:
                raise ValueError(f"version {data.get('version')!r}, this ftlaunch reads {RESOLVED_VERSION}")
            resolved = build(ResolvedSpec, data)
            if not resolved.hosts or any(host.slots < 1 for host in resolved.hosts):
                raise ValueError("each run has a host with a slot")
            return resolved
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise CheckpointError(f"not a resolved spec: {error}", where="resolved.json", fix="start the run again from its spec") from error


def load_resolved(path: Path) -> ResolvedSpec:
    """Reads RUN/resolved.json. Raises CheckpointError when it is missing or damaged."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"can't read {path}: {error.strerror}", fix="name a run folder that ftlaunch made") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is damaged: it is not UTF-8 text", fix="put the file back as it was, or start the run again from its spec") from error
    return ResolvedSpec.from_json(text)


def build(kind: type[T], data: Any) -> T:
    """A value of the dataclass `kind` from plain JSON data of the same shape (lists become tuples).

    Raises TypeError or KeyError when the shape or a type differs; which values are allowed is the schema's to say.
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
        hints = _hints(typing.cast(type, kind))
        unknown = set(_of_type(dict, data)) - set(hints)
        if unknown:
            raise KeyError(f"unknown keys {sorted(unknown)} for {kind}")
        return kind(**{name: _convert(hints[name], value) for name, value in data.items()})  # type: ignore[operator]
    if origin is tuple:
        item = typing.get_args(kind)[0]
        return tuple(_convert(item, value) for value in _of_type((list, tuple), data))
    if origin is dict:
        item = typing.get_args(kind)[1]
        return {key: _convert(item, value) for key, value in _of_type(dict, data).items()}
    if kind is Any:
        return data
    # To Python a bool is an int, and to JSON 2.0 may be written 2.
    return float(_of_type((int, float), data)) if kind is float else _of_type(kind, data)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields: read from text, which takes a while."""
    return typing.get_type_hints(kind)


def _of_type(kinds: type | tuple[type, ...], data: Any) -> Any:
    """`data`, when its own type is one of `kinds`. Raises TypeError otherwise."""
    allowed = kinds if isinstance(kinds, tuple) else (kinds,)
    if type(data) not in allowed:
        raise TypeError(f"{' or '.join(kind.__name__ for kind in allowed)} expected, got {str(data)[:60]!r}")
    return data
