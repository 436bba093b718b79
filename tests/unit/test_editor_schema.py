"""`ftlaunch config-schema`: what an editor is told of a spec agrees with what ftlaunch takes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from jsonschema.validators import Draft202012Validator

from ftcore.spec.quantities import QuantityError, parse_duration, parse_size
from launcher.cli import main
from launcher.editor_schema import editor_schema
from launcher.resolve import Options, check_spec
from launcher.schema_check import SPEC_SCHEMA, load_schema
from launcher.spec_source import DEFAULT_SPEC

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "golden" / "specs").glob("*.yaml"), DEFAULT_SPEC])
SCHEMA = editor_schema(load_schema(SPEC_SCHEMA))


class Yaml12(yaml.SafeLoader):
    """Reads scalars as an editor's YAML 1.2 does: `1e-5` is a number, `24:00:00` and `no` are text."""


Yaml12.yaml_implicit_resolvers = {}
for tag, form, first in (
    ("null", r"^(~|null|)$", ["~", "n", ""]),
    ("bool", r"^(true|false)$", list("tf")),
    ("int", r"^[-+]?[0-9]+$", list("-+0123456789")),
    ("float", r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$", list("-+.0123456789")),
):
    Yaml12.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(form), first)


def errors_of(spec: Any) -> list[str]:
    return [error.json_path for error in Draft202012Validator(SCHEMA).iter_errors(spec)]


def with_key(dotted: str, value: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"model": {"model_name_or_path": "m"}, "data": {"train": {"path": "x"}}}
    *sections, name = dotted.split(".")
    home = spec
    for section in sections:
        home = home.setdefault(section, {})
    home[name] = value
    return spec


def test_the_verb_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config-schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
    assert SCHEMA["$id"] and SCHEMA["title"] and SCHEMA["$schema"].endswith("2020-12/schema")


def test_it_is_a_schema_and_every_key_is_described() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    bare = [
        f"{section}.{key}" for section, entry in SCHEMA["properties"].items() for key, rule in entry.get("properties", {}).items() if not rule["description"]
    ]
    assert bare == []


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_it_accepts_what_is_right(path: Path) -> None:
    assert errors_of(yaml.load(path.read_text(encoding="utf-8"), Loader=Yaml12)) == []  # noqa: S506  a subclass of the safe loader


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("train.max_steps", "${STEPS}"), ("train.max_steps", 3), ("train.precision", "${P:-bf16}"), ("model.trust_remote_code", "${YES}")),
        *(("cluster.stall_timeout", "2h30m"), ("cluster.stall_timeout", "24:00:00"), ("cluster.stall_timeout", 5), ("cluster.stall_timeout", "${T}")),
        *(("hardware.memory", "24 GiB"), ("hardware.memory", 1 << 34), ("hardware.memory", None), ("method.target_modules", "q_proj")),
        *(("method.target_modules", ["q_proj", "${X}"]), ("method.target_modules", "${X}"), ("cluster.environment.A", "b"), ("optimizer.learning_rate", 1e-5)),
    ],
)
def test_it_accepts(key: str, value: Any) -> None:
    assert errors_of(with_key(key, value)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("train.max_stepz", 3), ("trian", {}), ("data.train.pth", "x"), ("data.eval_sets.a", {"path": "x", "y": 1}), ("cluster.scheduler.x", 1)),
        *(("train.max_steps", "3"), ("train.max_steps", 0), ("train.precision", "bf15"), ("model.trust_remote_code", "false")),
        *(("cluster.stall_timeout", "2 hours"), ("cluster.stall_timeout", -1), ("hardware.memory", "24 gib"), ("hardware.memory", 1)),
    ],
)
def test_it_refuses(key: str, value: Any) -> None:
    assert errors_of(with_key(key, value)) != []


@pytest.mark.parametrize(
    ("quantity", "text"),
    [("size", text) for text in ("24 GiB", "512MB", "1.5 TB", "7", "7 B", "24gib", "24 G", "1.5", "-1")]
    + [("duration", text) for text in ("2h30m", "90s", "1d", "2:30:00", "1-12:00:00", "2-12", "90", "0.5", "2 h", "-5", "1h:3")],
)
def test_patterns_of_units_agree_with_their_readers(quantity: str, text: str) -> None:
    key = {"size": "hardware.host_memory", "duration": "cluster.start_timeout"}[quantity]
    try:
        (parse_size if quantity == "size" else parse_duration)(text)
        reads = True
    except QuantityError:
        reads = False
    assert (errors_of(with_key(key, text)) == []) == reads


def test_a_spec_may_say_where_its_schema_lies(tmp_path: Path) -> None:
    spec = {"$schema": "ftlaunch.schema.json", "model": {"model_name_or_path": "builtin:tiny-llama"}, "data": {"train": {"path": "builtin:extraction/train"}}}
    assert errors_of(spec) == []
    for name in ("spec.json", "spec.yaml"):
        (tmp_path / name).write_text(json.dumps(spec), encoding="utf-8")
        assert check_spec(Options(spec_path=tmp_path / name)) == []
