"""One side of a comparison: a run's folder or a spec file, as flat values by section."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ftcore.spec.document import dotted, leaves
from ftcore.spec.errors import CheckpointError, SpecError
from ftcore.spec.run_dir import RunDir

SECTIONS = ("spec", "code", "data", "environment", "results")
_COUNTS = ("fingerprint", "rows", "samples", "tokens", "supervised_tokens", "dropped", "truncated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A run or a spec."""

    name: str
    is_run: bool
    values: Mapping[str, Mapping[str, Any]]
    """Section -> dotted key -> value."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Key of the spec -> who set it."""
    notes: tuple[str, ...] = ()
    """What this side can't tell."""


def read_side(path: Path) -> Side:
    """A run when `path` is a folder, else a spec. Raises CheckpointError for a folder without a run, SpecError for a spec with mistakes."""
    if path.is_dir():
        return _read_run(path)
    from launcher.resolve import Options, read_and_resolve

    if not path.exists():
        raise SpecError(f"there is no {path}", where=str(path), fix="name two run folders, or two spec files")
    resolved = read_and_resolve(Options(spec_path=path)).resolved
    spec = {**_flat(dataclasses.asdict(resolved.spec)), "hosts": _hosts([dataclasses.asdict(host) for host in resolved.hosts])}
    return Side(name=str(path), is_run=False, values={"spec": spec}, sources=resolved.sources)


def _read_run(path: Path) -> Side:
    from launcher.run_folder import find_run

    run_dir = find_run(path, where=str(path))
    resolved = _json(run_dir.resolved)
    if not isinstance(resolved.get("spec"), dict):
        raise CheckpointError("it is damaged: it holds no spec", where=str(run_dir.resolved), fix="name another run")
    prepared, environment = _json(run_dir.prepared), _json(run_dir.environment)
    notes = ["its data was never prepared"] * (not prepared)
    notes += ["its code and libraries are not recorded: it was never started (a dry run), or an older ftlaunch started it"] * (not environment)
    values: dict[str, Mapping[str, Any]] = {"spec": {**_flat(resolved["spec"]), "hosts": _hosts(resolved.get("hosts", []))}}
    if environment:
        values |= {"code": environment.get("code", {}), "environment": dict(_environment(environment))}
    if prepared:
        values["data"] = dict(_data(prepared))
    values["results"] = dict(_results(run_dir))
    return Side(name=str(path), is_run=True, values=values, sources=resolved.get("sources", {}), notes=tuple(notes))


def _flat(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Key path -> value, tuples as lists."""
    return {dotted(path): list(value) if isinstance(value, tuple) else value for path, value in leaves(json.loads(json.dumps(spec)))}


def _json(path: Path) -> dict[str, Any]:
    """The object in a file of the run; empty when it is not there. Raises CheckpointError when it is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"can't be read: {error}", where=str(path), fix="name another run") from error
    if not isinstance(value, dict):
        raise CheckpointError("it is damaged: it holds no object", where=str(path), fix="name another run")
    return value


def _data(prepared: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    train = prepared.get("train") or {}
    # Older runs had one set to train on.
    sets = {**({"train": train} if "arrow" in train else train), **(prepared.get("eval") or {})}
    for name, facts in sets.items():
        if isinstance(facts, dict):
            yield from ((f"{name}.{key}", facts[key]) for key in _COUNTS if key in facts)
    model = prepared.get("model")
    if isinstance(model, dict):
        yield from ((f"model.{key}", model[key]) for key in ("name", "revision", "digest") if model.get(key))


def _hosts(hosts: list[dict[str, Any]]) -> list[str]:
    return [f"{host['name']} slots={host['slots']}" for host in hosts]


def _environment(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in ("python", "machine"):
        if record.get(name):
            yield name, record[name]
    yield from ((f"libraries.{name}", found) for name, found in record.get("libraries", {}).items() if found)
    hosts = record.get("hosts", [])
    yield "accelerators", sorted({accelerator for host in hosts for accelerator in host["accelerators"]})
    yield "drivers", sorted({host["driver"] for host in hosts if host["driver"]})
    yield "variables", record.get("variables", [])


def _results(run_dir: RunDir) -> Iterator[tuple[str, Any]]:
    from launcher.events_file import read_events

    rows = list(_rows(run_dir.metrics))
    if rows:
        yield "updates", rows[-1].get("update")
        yield "loss", rows[-1].get("loss")
        yield "tokens_per_s (median)", round(median([row["tokens_per_s"] for row in rows if "tokens_per_s" in row] or [0.0]), 1)
        yield "peak_memory_bytes", max((row["peak_memory_bytes"] for row in rows if "peak_memory_bytes" in row), default=None)
    yield from ((f"{event.get('set', 'eval')}/loss", event.get("loss")) for event in read_events(run_dir, "evaluation"))
    ended = read_events(run_dir, "launch_ended")
    if ended:
        yield "ended", f"{ended[-1].get('reason')} (status {ended[-1].get('status')})"


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of metrics.jsonl."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row
