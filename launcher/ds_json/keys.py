"""What is known of DeepSpeed's own keys: one schema, read in two ways."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ftcore.spec.document import KeyPath
from launcher.schema_check import Schema, load_schema

DS_SCHEMA = Path(__file__).parent.with_name("schema") / "ds_config.schema.json"
_ABOUT = ("title", "description", "$schema")


@functools.cache
def overrides_schema() -> Schema:
    """What zero.overrides may hold: a refused key is refused whatever its value."""
    return _for_overrides(load_schema(DS_SCHEMA))


@functools.cache
def json_schema() -> Schema:
    """The types of every key that a DeepSpeed JSON may hold; what becomes of a key is `launcher.ds_json.walk`'s to say."""
    return _for_json(load_schema(DS_SCHEMA))


def rule_at(path: KeyPath) -> Schema | None:
    """What the schema says of a key of DeepSpeed; None for one that it does not know."""
    rule: Schema = load_schema(DS_SCHEMA)
    for part in path:
        found = rule.get("properties", {}).get(part)
        if found is None:
            return None
        rule = found
    return rule


@functools.cache
def keys_of_spec() -> dict[KeyPath, str]:
    """Key of DeepSpeed -> the spec's key for the same value (dotted), of those that are the same value."""
    return {path: rule["x-key"] for path, rule in _rules(load_schema(DS_SCHEMA), ()) if "x-key" in rule}


@functools.cache
def stages_of_zero_keys() -> dict[str, tuple[int, ...]]:
    """Key of the section zero that goes to DeepSpeed as it is -> the stages in which it has an effect."""
    rules = {str(path[-1]): rule for path, rule in _rules(load_schema(DS_SCHEMA), ()) if "x-key" in rule}
    return {name: tuple(rule["x-stages"]) for name, rule in rules.items() if "x-stages" in rule}


def stages_of(key: str) -> tuple[int, ...]:
    """The ZeRO stages in which a key of zero_optimization has an effect."""
    rule = rule_at(("zero_optimization", key))
    return tuple((rule or {}).get("x-stages", (0, 1, 2, 3)))


def _rules(rule: Schema, above: KeyPath) -> Iterator[tuple[KeyPath, Schema]]:
    for name, inner in rule.get("properties", {}).items():
        yield (*above, name), inner
        yield from _rules(inner, (*above, name))


def _for_overrides(rule: Schema) -> Schema:
    if "x-refused" in rule:
        return {key: rule[key] for key in ("x-refused", "x-fix")}
    return {key: _properties(value, _for_overrides) if key == "properties" else value for key, value in rule.items() if key not in _ABOUT}


def _for_json(rule: Schema) -> Schema:
    dropped = (*_ABOUT, "x-refused", "x-fix")
    return {key: _properties(value, _for_json) if key == "properties" else value for key, value in rule.items() if key not in dropped}


def _properties(properties: dict[str, Any], reduce: Any) -> dict[str, Any]:
    return {name: reduce(rule) for name, rule in properties.items()}
