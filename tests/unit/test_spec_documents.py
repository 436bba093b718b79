"""Strict YAML and JSON: what each scalar means, which mistakes are found, and on which line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.document import describe, dotted, read_document
from ftcore.spec.yaml_strict import parse_scalar

CASES = Path(__file__).resolve().parents[1] / "cases" / "yaml"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("5e-4", 5e-4),
        ("1E-5", 1e-5),
        ("1.0e-5", 1e-5),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("+3", 3),
        ("0", 0),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("True", "True"),
        ("no", "no"),
        ("off", "off"),
        ("yes", "yes"),
        ("24:00:00", "24:00:00"),
        ("2:30", "2:30"),
        ("017", "017"),
        ("0x1f", "0x1f"),
        ("1_000", "1_000"),
        (".nan", ".nan"),
        (".inf", ".inf"),
        ("1e999", "1e999"),
        ("2024-01-01", "2024-01-01"),
        ("1e", "1e"),
        ("1-e5", "1-e5"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalar(text: str, value: Any) -> None:
    parsed = parse_scalar(text)
    assert parsed == value and type(parsed) is type(value)


def test_case_file_of_scalars() -> None:
    document = read_document((CASES / "scalars.yaml").read_bytes(), "scalars.yaml")
    assert document.problems == ()
    assert document.data == {
        "lr_a": 1e-5,
        "lr_b": 1e-5,
        "lr_c": 5e-4,
        "lr_d": 1e-5,
        "mp_a": "no",
        "mp_b": "no",
        "flag_a": "false",
        "flag_b": "off",
        "wall_a": "24:00:00",
        "wall_b": "01:00:00",
        "wall_c": "2:30",
        "acct": "017",
        "n": "1_000",
        "nothing": None,
    }
    assert document.lines[("lr_a",)] == 2


def test_duplicate_key_names_both_lines() -> None:
    document = read_document((CASES / "duplicate_key.yaml").read_bytes(), "duplicate_key.yaml")
    (problem,) = document.problems
    assert "lines 1 and 3" in problem.what
    assert (problem.line, problem.where) == (3, "max_length")


@pytest.mark.parametrize(
    ("raw", "line", "words"),
    [
        (b"a: 1\n\tb: 2\n", 2, "spaces, not with tabs"),
        (b"a: 1\nb: [1, 2\n", 3, "not valid YAML"),
        (b"a: b: c\n", 1, "check the indentation"),
        (b"a: 1\n\xff: 2\n", 2, "not UTF-8"),
        (b"\xfe\xff\x00a", 1, "not UTF-8"),
        (b"", 1, "empty"),
        (b"# nothing\n", 1, "empty"),
        (b"- a\n- b\n", 1, "got a list"),
        (b"just text\n", 1, "got text"),
        (b"a: &x 1\nb: 2\n", 1, "anchor"),
        (b"a: 1\nb: *a\n", 2, "alias"),
        (b"a: 1\nb: {<<: {c: 1}}\n", 2, "merge keys"),
        (b"a: !!str 5\n", 1, "tag"),
        (b"a: 1\n? [b]\n: 2\n", 2, "a key must be plain text"),
        (b"a: {b: 1, b: 2}\n", 1, "lines 1 and 1"),
        (b'a: "\\0"\n', 1, "NUL"),
        (b'a: ["\\ud800"]\n', 1, "surrogate"),
        (b"a: 1\nb: \x07\n", 2, "U+0007"),
        (b"a: 1\n---\nb: 1\n", 2, "single document"),
        (b"a: " + b"[" * 3000, None, "nested too deeply"),
    ],
)
def test_yaml_mistake(raw: bytes, line: int | None, words: str) -> None:
    problems = read_document(raw, "spec.yaml").problems
    assert any(words in str(problem) and problem.line == line and problem.file == "spec.yaml" for problem in problems), problems


def test_cyclic_alias_ends() -> None:
    assert "alias" in str(read_document(b"a: &x [*x]\n", "spec.yaml").problems)


def test_bom_is_no_content() -> None:
    for name in ("a.yaml", "a.json"):
        document = read_document(b'\xef\xbb\xbf{"a": 1}', name)
        assert (document.data, document.problems) == ({"a": 1}, ())


def test_json_lines_and_values() -> None:
    text = '{\n  "a": {\n\t"b": [1, {"c": 1e-5}],\n    "d": "no"\n  },\n  "e": null, "f": [], "g": {}\n}\n'
    document = read_document(text.encode(), "spec.json")
    assert document.data == json.loads(text) and document.problems == ()
    assert (document.lines[("a", "b")], document.lines[("a", "b", 1, "c")], document.lines[("a", "d")], document.lines[("e",)]) == (3, 3, 4, 6)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('{"a": 1,\n "a": 2}', 2, "lines 1 and 2"),
        ('{"a": 1,\n}', 2, "property name"),
        ('{"a": 1\n "b": 2}', 2, "',' delimiter"),
        ('{"a"\n 1}', 2, "':' delimiter"),
        ('{"a": [1 2]}', 1, "',' delimiter"),
        ('{"a": 1}\nx', 2, "Extra data"),
        ('{"a": tru}', 1, "Expecting value"),
        ('{"a": "\n"}', 1, "Invalid control character"),
        ("[1]", 1, "got a list"),
        ("  \n", 1, "empty"),
        ('{"a": "\\ud800"}', 1, "surrogate"),
        ('{"a": ' + "[" * 3000, None, "nested too deeply"),
    ],
)
def test_json_mistake(text: str, line: int | None, words: str) -> None:
    problems = read_document(text.encode(), "spec.json").problems
    assert any(words in problem.what and problem.line == line for problem in problems), problems


def test_json_numbers_out_of_reach_stay_text() -> None:
    document = read_document(f'{{"a": NaN, "b": 1e999, "c": {"9" * 5000}, "d": -Infinity}}'.encode(), "spec.json")
    assert document.data == {"a": "NaN", "b": "1e999", "c": "9" * 5000, "d": "-Infinity"}


def test_names_for_people() -> None:
    assert dotted(("method", "target_modules", 1)) == "method.target_modules[1]"
    shown = {"null": None, "boolean true": True, "number 3": 3, "number 1e-05": 1e-5, "text 'a'": "a", "a list": [1], "a mapping": {}}
    assert [describe(value) for value in shown.values()] == list(shown)
    assert describe("x" * 100).endswith("...'")
    assert describe("a\nb") == "text 'a\\nb'"
