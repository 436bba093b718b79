"""The spec's schema as editors take it: references to the environment and units may stand where a number is meant, and nothing refers to other files."""

from __future__ import annotations

from typing import Any

SCHEMA_ID = "urn:ftlaunch:spec:1"
REFERENCE = {"type": "string", "pattern": r"\$\{[A-Za-z_]", "description": "`${NAME}` or `${NAME:-default}`: from the environment."}
PATTERNS = {
    "size": r"^[0-9]+(\.[0-9]+)? ?([kKMGTP]B|[KMGTP]iB)$|^[0-9]+( ?B)?$",
    "duration": r"^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$|^([0-9]+-)?[0-9]+(:[0-9]+){0,2}$|^[0-9]+\.[0-9]+$",
}
"""Quantity -> the form of its text, as far as a pattern can tell; `ftlaunch validate` checks the rest."""
EXAMPLES = {"size": ["24 GiB", "512 MB"], "duration": ["2h30m", "90s", "2:30:00"]}
_ABOUT = ("description", "default", "examples")


def editor_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON Schema of draft 2020-12 for the `# yaml-language-server: $schema=` line of a spec, or the `$schema` key of one in JSON."""
    body = _section(schema)
    properties = {"$schema": {"type": "string", "description": "Where this schema lies, for editors."}, **body.pop("properties")}
    head = {"$schema": body.pop("$schema"), "$id": SCHEMA_ID, "title": body.pop("title")}
    return {**head, "description": "A fine-tuning run: `ftlaunch --spec FILE`.", **body, "properties": properties}


def _section(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of a mapping or a list, with what it holds converted."""
    converted = dict(schema)
    if "properties" in schema:
        converted["properties"] = {name: _entry(entry) for name, entry in schema["properties"].items()}
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            converted[name] = _entry(schema[name])
    return converted


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    """The schema of a value: of a key whose text alone could not hold a reference, one is allowed beside it."""
    types = entry.get("type", [])
    if types == "string" and "enum" not in entry:
        return entry
    if "object" in types:
        return _section(entry)
    about = {name: entry[name] for name in _ABOUT if name in entry}
    rest = {name: value for name, value in _section(entry).items() if name not in about}
    quantity = entry.get("x-quantity")
    if quantity:
        about.setdefault("examples", EXAMPLES[quantity])
        rest["pattern"] = PATTERNS[quantity]
    return {**about, "anyOf": [rest, REFERENCE]}
