"""The spec of a run with who set what, and where it ran."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ftcore.report.blocks import Block, Column, Facts, Folded, Section, Table
from ftcore.report.run_view import RunView
from ftcore.spec.document import dotted, leaves

DERIVED = ("default", "derived")
"""Who set what nobody asked for."""


def the_spec(view: RunView) -> Section:
    """What was asked for, and behind a line everything else."""
    values = flat_spec(view)
    sources = view.record.resolved.get("sources")
    told = sources if isinstance(sources, Mapping) else {}
    rows = [(key, shown(value), str(told.get(key, ""))) for key, value in values.items()]
    asked = [row for row in rows if row[2] and row[2] not in DERIVED]
    rest = [row for row in rows if row not in asked]
    blocks: list[Block] = [_spec_table(asked)] if asked else []
    blocks.append(Folded(summary=f"{len(rest)} keys that were left at their defaults or follow from others", blocks=(_spec_table(rest),)))
    return Section(title="Spec", blocks=tuple(blocks), lead="Keys that somebody set, and who.")


def flat_spec(view: RunView) -> dict[str, Any]:
    """Dotted key -> value."""
    spec = view.record.resolved.get("spec")
    return {dotted(path): value for path, value in leaves(spec)} if isinstance(spec, dict) else {}


def shown(value: Any) -> str:
    """A value as the spec would write it."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _spec_table(rows: list[tuple[str, str, str]]) -> Table:
    columns = (Column(name="key"), Column(name="value", is_long=True), Column(name="set by", is_long=True))
    return Table(columns=columns, rows=tuple(rows))


def environment(view: RunView) -> Section:
    """Code, libraries, hosts of the newest launch."""
    facts = view.record.environment
    if not facts:
        return Section(title="Environment", lead="Nothing is recorded of it.")
    return Section(title="Environment", blocks=(Facts(rows=tuple(_environment(facts))),), lead="Of the newest launch.")


def _environment(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    code, libraries, hosts = (facts.get(key) for key in ("code", "libraries", "hosts"))
    if isinstance(code, Mapping):
        yield "ftlaunch", ", ".join(str(code[key]) if key == "ftlaunch" else f"{key} {code[key]}" for key in ("ftlaunch", "commit", "digest") if code.get(key))
    yield "python", f"{facts.get('python', '?')} on {facts.get('machine', '?')}"
    if isinstance(libraries, Mapping):
        yield "libraries", ", ".join(f"{name} {version}" for name, version in libraries.items() if version)
    for host in hosts if isinstance(hosts, list) else []:
        if isinstance(host, Mapping):
            accelerators = host.get("accelerators")
            kinds = ", ".join(map(str, accelerators)) if isinstance(accelerators, list) and accelerators else "CPU"
            driver = f", driver {host['driver']}" if host.get("driver") else ""
            yield f"host {host.get('name')}", f"{host.get('slots')} ranks, {kinds}{driver}"
    if isinstance(facts.get("variables"), list):
        yield "variables set", ", ".join(map(str, facts["variables"]))
