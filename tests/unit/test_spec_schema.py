"""The JSON schema of a spec against the dataclasses, what is said of data that fails a schema, and the advice on unknown keys."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema.validators import Draft202012Validator

from ftcore.spec import sections
from ftcore.spec.aliases import ALIASES
from ftcore.spec.document import dotted
from ftcore.spec.names import COLUMNS, SECTIONS, SHORTHANDS, advise, known_keys, nearest
from launcher.ds_json.keys import DS_SCHEMA
from launcher.schema_check import SPEC_SCHEMA, WORDINGS, advise_from_schema, check_schema, load_schema
from launcher.validate import partial_spec

SCHEMA = load_schema(SPEC_SCHEMA)
_OF_SECTIONS = {"properties", "additionalProperties", "required", "items"}
_ANNOTATIONS = {"$schema", "title", "description", "default", "x-fix", "x-stages", "x-unit", "examples", "x-json", "x-key", "x-off", "x-precisions"}
_OTHER_TYPES: dict[str, Any] = {
    ".train.gradient_checkpointing": ["string", "boolean"],
    ".evaluation.metrics": "array",
    ".logging.report_to": "array",
    ".profiling.ranks": "array",
    ".hardware.accelerator": ["string", "integer"],
}
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}


def _expected_type(hint: Any) -> Any:
    options = [option for option in typing.get_args(hint) if option is not type(None)] if type(None) in typing.get_args(hint) else [hint]
    kind = options[0]
    if typing.get_origin(kind) is tuple:
        return "array" if dataclasses.is_dataclass(typing.get_args(kind)[0]) else ["array", "string"]
    name = "object" if dataclasses.is_dataclass(kind) else _TYPES[typing.get_origin(kind) or kind]
    return [name, "null"] if type(None) in typing.get_args(hint) else name


def _agreement(kind: type, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Every difference between a dataclass and its schema."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if list(fields) != list(schema["properties"]) and set(fields) != set(schema["properties"]):
        yield f"{path}: {set(fields) ^ set(schema['properties'])}"
    required = [name for name, field in fields.items() if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING]
    if schema.get("required", []) != required or schema["additionalProperties"] is not False:
        yield f"{path}: required or additionalProperties"
    for name, hint in typing.get_type_hints(kind).items():
        rule, here = schema["properties"][name], f"{path}.{name}"
        expected = _OTHER_TYPES.get(here) or _expected_type(hint)
        if "x-quantity" in rule:
            number, *null = expected if isinstance(expected, list) else [expected]
            expected = [number, "string", *null]
        if rule["type"] != expected or not rule.get("description"):
            yield f"{here}: type {rule['type']} or description"
        inner = next((option for option in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(option)), None)
        if inner is not None:
            held = {dict: rule.get("additionalProperties"), tuple: rule.get("items")}.get(typing.get_origin(hint), rule)
            yield from _agreement(typing.cast(type, inner), typing.cast(dict[str, Any], held), here)
        field = fields[name]
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        if default is not dataclasses.MISSING and not dataclasses.is_dataclass(default):
            shown = list(default) if isinstance(default, tuple) else default
            if "default" not in rule or rule["default"] != shown:
                yield f"{here}: default"


def test_schema_agrees_with_the_dataclasses() -> None:
    assert list(_agreement(sections.Spec, SCHEMA, "")) == []
    assert set(SECTIONS) == set(SCHEMA["properties"])


def _subschemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for inner in schema.get("properties", {}).values():
        yield from _subschemas(inner)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _subschemas(schema[key])


@pytest.mark.parametrize("path", [SPEC_SCHEMA, DS_SCHEMA], ids=lambda path: path.name)
def test_schema_is_valid_and_every_keyword_has_a_wording(path: Any) -> None:
    schema = load_schema(path)
    Draft202012Validator.check_schema(schema)
    for inner in _subschemas(schema):
        assert set(inner) <= {*WORDINGS, *_OF_SECTIONS, *_ANNOTATIONS}
        assert ("x-refused" in inner) == ("x-fix" in inner)
        if inner.get("type") == "object" and "properties" in inner:
            assert inner["additionalProperties"] is False


def test_numbers_are_bounded() -> None:
    for inner in _subschemas(SCHEMA):
        kinds = inner.get("type", [])
        kinds = {kinds} if isinstance(kinds, str) else set(kinds)
        # A name that consists of digits is no number.
        if {"integer", "number"} & kinds and "string" not in kinds and "enum" not in inner:
            assert {"minimum", "exclusiveMinimum"} & set(inner) and {"maximum", "exclusiveMaximum"} & set(inner), inner


_FRACTIONS = st.floats(-1, 2, allow_nan=False).filter(lambda value: not value.is_integer())
_VALUES = st.one_of(st.none(), st.booleans(), st.integers(-2, 5), _FRACTIONS, st.sampled_from(["", "lora", "cpu", "x"]))
_LEAVES = [(section, key) for section, keys in known_keys().items() for key in [*keys, "nonsense"]]


@st.composite
def _specs(draw: st.DrawFn) -> dict[str, Any]:
    """A spec with a few keys set to anything."""
    spec: dict[str, Any] = {"model": {"model_name_or_path": "a/b"}, "data": {"train": {"path": "x"}, "eval": {"path": "y"}}}
    for section, key in draw(st.lists(st.sampled_from(_LEAVES), max_size=6)):
        home: Any = spec
        for part in section.split("."):
            home = home.setdefault(part, {}) if isinstance(home, dict) else home
        if isinstance(home, dict):
            home[key] = draw(st.one_of(_VALUES, st.lists(_VALUES, max_size=3), st.dictionaries(st.sampled_from(["a", "path"]), _VALUES, max_size=2)))
    return spec


@settings(max_examples=300, deadline=None)
@given(_specs())
def test_a_spec_without_what_was_found_wrong_is_right(spec: dict[str, Any]) -> None:
    """Each value is told of once; nothing is left but the empty paths that stand in for missing ones."""
    paths = [item.path for item in check_schema(spec, SCHEMA, lambda *_: "")]
    rest = json.loads(json.dumps(dataclasses.asdict(partial_spec(spec, paths))))
    assert len(set(paths)) == len(paths)
    assert {error.validator for error in Draft202012Validator(SCHEMA).iter_errors(rest)} <= {"minLength"}


def test_problems_come_by_path_with_one_verdict_a_value() -> None:
    data = {
        "zero": {"stage": "9", "overrides": [], "offload_param": 3},
        "model": "gpt2",
        "train": {"seed": 7.0, "max_steps": True, "zz": 1, "aa": {"lr": 1}},
        "data": {"train": {"path": "x", "columns": {"d": 1, "b": 2, "a": "", "c": 4}}},
    }
    found = {dotted(item.path): item.problem.what for item in check_schema(data, SCHEMA, lambda _, key, __: "a fix" if key in ("zz", "aa") else "")}
    assert list(found.items()) == [
        ("data.train.columns.a", "it is empty"),
        ("data.train.columns.b", "text expected, got number 2"),
        ("data.train.columns.c", "text expected, got number 4"),
        ("data.train.columns.d", "text expected, got number 1"),
        ("model", "a section (keys below it) expected, got text 'gpt2'"),
        ("train.zz", "unknown key `zz`"),
        ("train.aa", "unknown key `aa`"),
        ("train.max_steps", "a whole number expected, got boolean true"),
        ("train.seed", "a whole number expected, got number 7.0"),
        ("zero.offload_param", "text expected, got number 3"),
        ("zero.overrides", "a section (keys below it) expected, got a list"),
        ("zero.stage", "a whole number expected, got text '9'"),
    ]


@pytest.mark.parametrize(
    ("section", "key", "words"),
    [
        ("", "learning_rate", "`optimizer.learning_rate`"),
        ("", "lr", "`optimizer.learning_rate`"),
        ("train", "epochs", "`train.num_train_epochs`"),
        ("", "num_epochs", "`train.num_train_epochs`"),
        ("", "batch_size", "`batch.global_batch_size`"),
        ("batch", "per_device_train_batch_size", "batch.micro_batch_tokens"),
        ("train", "gradient_accumulation_steps", "follows from batch.micro_batch_tokens"),
        ("", "lora_r", "`method.r`"),
        ("data", "cutoff_len", "`data.max_length`"),
        ("", "deepspeed", "zero.overrides"),
        ("", "bf16", "`train.precision`"),
        ("", "fp16", "train.precision"),
        ("schedule", "warmup", "`schedule.warmup_ratio`"),
        ("", "save_strategy", "`checkpoint.save_steps`"),
        ("", "output-dir", "-o RUN"),
        ("schedule", "type", "`schedule.lr_scheduler_type`"),
        ("optimizer", "name", "`optimizer.type`"),
        ("optimizer", "learning-rate", "`optimizer.learning_rate`"),
        ("train", "stage", "`zero.stage`"),
        ("train", "gradient_checkpoint", "`train.gradient_checkpointing`"),
        ("training", "gradient_checkpoint", "`train.gradient_checkpointing`"),
        ("training", "quantizaton", "method.type: qlora"),
        ("data.eval_sets.hard", "pth", "`data.eval.path`"),
        ("optimizer.parameter_groups.0", "lr", "`learning_rate`"),
        ("method.adapters.small", "rank", "`r`"),
        ("", "optimiser", "`optimizer`"),
        ("data.train", "colums", "`data.train.columns`"),
        ("data", "path", "`data.train.path` or `data.eval.path`"),
        ("zero", "learning_rte", "`optimizer.learning_rate`"),
        ("zero", "xyzzy", "valid here: stage"),
        ("evaluation", "steps", "`evaluation.eval_steps`"),
        ("checkpoint", "steps", "`checkpoint.save_steps`"),
        ("train", "steps", "`train.max_steps`"),
        ("model", "path", "`model.model_name_or_path`"),
        ("checkpoint", "model", "`model`"),
        ("train", "zero", "`zero`"),
    ],
)
def test_advice_on_an_unknown_key(section: str, key: str, words: str) -> None:
    assert words in advise(section, key)


@pytest.mark.parametrize("section", ["nowhere", "model.extra"])
def test_no_advice_below_a_section_that_resembles_none(section: str) -> None:
    assert advise(section, "xyzzy") == ""


def test_aliases_point_at_keys() -> None:
    known = known_keys()
    full = {f"{section}.{key}" for section, keys in known.items() for key in keys} | set(SECTIONS)
    for name, alias in ALIASES.items():
        if not alias.startswith("="):
            assert alias.split(" ")[0] in full, name
            assert name not in full
    for section, key in SHORTHANDS.items():
        assert f"{section}.{key}" in full
    assert {*COLUMNS, "auto"} == set(SCHEMA["properties"]["data"]["properties"]["train"]["properties"]["format"]["enum"])


def test_nearest_lists_the_choices_when_none_is_near() -> None:
    assert nearest("xyz", ["fp32", "bf16"]) == "valid here: fp32, bf16"
    assert advise_from_schema((), "stagee", {}) == ""


def test_schema_file_is_stored_as_json_with_a_final_newline() -> None:
    assert SPEC_SCHEMA.read_text(encoding="utf-8") == json.dumps(SCHEMA, indent=2, ensure_ascii=False) + "\n"
