"""docs/spec.md from the schema: `python -m launcher.spec_docs > docs/spec.md`; a test fails when the file is stale."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ftcore.spec import errors

SCHEMA = Path(errors.__file__).parent / "spec.schema.json"
HEAD = """# The spec

Written by `python -m launcher.spec_docs > docs/spec.md`; change ftcore/spec/spec.schema.json instead.

YAML or JSON, one file. Required: `model.model_name_or_path`, and rows to train on: `data.train.path`, or sets below `data.train_sets`. Relative paths
are relative to the folder that ftlaunch is called in. Numbers such as `1e-5` are numbers; only `true` and `false` are booleans; unknown keys, duplicate
keys, anchors and tags are refused. A value comes from, the later the stronger: the default, the spec file, and the command
line (`--hosts`, `--zero`, `--launcher`, `--master-addr`, `--master-port`, `--interface`, `--max-restarts`, `--elastic`, `--set KEY=VALUE`).
Sizes (`24 GiB`, `512 MB`), durations (`2h30m`), `${VAR}` for the environment's values, and what no spec may hold: spec-files.md.
"""


def render_spec_docs(schema: dict[str, Any]) -> str:
    """The page: a table a section, one row a key, nested mappings as dotted keys."""
    parts = [HEAD]
    for name, section in schema["properties"].items():
        parts.append(f"\n## {name}\n\n{section['description']}\n\n| key | type | default | unit | example | meaning |\n|---|---|---|---|---|---|\n")
        parts += [_row(key, entry, required) for key, entry, required in keys_of(f"{name}.", section, schema)]
    return "".join(parts)


def keys_of(prefix: str, section: dict[str, Any], schema: dict[str, Any]) -> list[tuple[str, dict[str, Any], bool]]:
    """(dotted key, its part of the schema, whether its section needs it) of every key below `section`, whose own key is `prefix`."""
    found: list[tuple[str, dict[str, Any], bool]] = []
    for key, given in section.get("properties", {}).items():
        entry = _resolved(given, schema)
        if "properties" in entry:
            found += keys_of(f"{prefix}{key}.", entry, schema)
            continue
        found.append((prefix + key, entry, key in section.get("required", [])))
        for inner, sign in ((entry.get("items"), "[]."), (entry.get("additionalProperties"), ".NAME.")):
            if isinstance(inner, dict) and "properties" in inner:
                found += keys_of(f"{prefix}{key}{sign}", inner, schema)
    return found


def _resolved(entry: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """`entry` with its `$ref` into the same schema followed, also as one of `anyOf`."""
    options = [entry, *entry.get("anyOf", [])]
    reference = next((option["$ref"] for option in options if "$ref" in option), None)
    if reference is None:
        return entry
    target: Any = schema
    for part in reference.removeprefix("#/").split("/"):
        target = target[part]
    return {**target, **entry}


def _row(key: str, entry: dict[str, Any], required: bool) -> str:
    is_optional_part = key.startswith("data.eval") or "[]" in key or ".NAME." in key
    default = ("**required** in it" if is_optional_part else "**required**") if required else f"`{json.dumps(entry['default'])}`" if "default" in entry else ""
    example = "".join(f"`{_shown(value)}`" for value in entry.get("examples", ()))
    return f"| `{key}` | {_type(entry)} | {default} | {_unit(entry)} | {example} | {entry.get('description', '')} |\n"


def _shown(value: Any) -> str:
    """A value as a spec file has it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    # A text that begins so would be another thing to YAML.
    quoted = isinstance(value, str) and value[:1] in ("*", "[", "&", "!")
    return f"'{value}'" if quoted else value if isinstance(value, str) else json.dumps(value)


def _unit(entry: dict[str, Any]) -> str:
    return str(entry.get("x-unit") or {"size": "bytes", "duration": "seconds"}.get(entry.get("x-quantity", ""), ""))


def _type(entry: dict[str, Any]) -> str:
    if "enum" in entry:
        return " \\| ".join(str(value) for value in entry["enum"] if value is not None)
    kinds = entry.get("type", [])
    text = entry.get("x-quantity") or " or ".join(kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null")
    low = entry.get("minimum", entry.get("exclusiveMinimum"))
    bounds = [f"{'>' if 'exclusiveMinimum' in entry else '≥'} {low}" if low is not None else "", f"≤ {entry['maximum']}" if "maximum" in entry else ""]
    return " ".join(part for part in (text, *bounds) if part)


if __name__ == "__main__":
    sys.stdout.write(render_spec_docs(json.loads(SCHEMA.read_text(encoding="utf-8"))))
