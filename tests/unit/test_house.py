"""Rules of the house that no linter knows: sizes, names, and what may stand where. Each failure lists every place at once."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("launcher", "ftcore")
FOLDERS = (*PRODUCT, "tests", "benchmarks")

MOST_LINES = 300
MOST_LINES_WITH_REASON = 400
LONG_FILES: dict[str, str] = {}
"""File -> why it is longer than MOST_LINES."""
MOST_FUNCTION_LINES = 60
MOST_PARAMETERS = 7
VAGUE_NAMES = {"utils.py", "common.py", "helpers.py", "misc.py"}

OPEN_KEYWORDS = {
    "ftcore/spec/events.py:emit": "an event's fields differ by event",
    "ftcore/metrics/writer.py:record_event": "as emit",
    "ftcore/collective_calls.py:told": "hands a collective what it was called with",
    "ftcore/collective_calls.py:wait": "hands torch's handle what it was called with",
    "ftcore/model/full_precision.py:forward": "a module's forward takes whatever its model hands it",
    "ftcore/attention.py:segment_attention": "transformers hands an attention function whatever its model's layer has",
}
"""Function of the product -> why its signature ends in `**something`."""
UNFINISHED = ("TODO", "FIXME", "XXX", "NotImplementedError", "unittest.mock")

DOORS = {
    "deepspeed": ("ftcore/engine.py", "ftcore/engine_inference.py", "ftcore/engine_leaves.py", "ftcore/engine_state.py"),
    "torch.distributed": ("ftcore/collective_calls.py", "ftcore/dist.py"),
}
"""Library -> the modules of the product that may import it."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def sources(*folders: str) -> dict[str, ast.Module]:
    """Path relative to the root -> syntax tree, of every Python file of these folders."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def functions(*folders: str) -> Iterator[tuple[str, Function]]:
    """`file:name` and node of every function and method."""
    for file, tree in sources(*folders).items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield f"{file}:{node.name}", node


def test_there_is_something_to_check() -> None:
    assert all(len(sources(folder)) >= 3 for folder in FOLDERS)
    assert sum(1 for _ in functions(*PRODUCT)) > 200


def test_files_are_short() -> None:
    limits = {file: MOST_LINES_WITH_REASON if file in LONG_FILES else MOST_LINES for file in sources(*FOLDERS)}
    counts = {file: len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in limits}
    assert not {file: count for file, count in counts.items() if count > limits[file]}
    assert not {file for file in LONG_FILES if counts.get(file, 0) <= MOST_LINES}, "take these off the list"


def test_functions_are_short() -> None:
    sizes = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in functions(*FOLDERS)}
    assert not {name: size for name, size in sizes.items() if size > MOST_FUNCTION_LINES}


def test_functions_take_few_arguments() -> None:
    counts = {name: len(named_arguments(node)) for name, node in functions(*PRODUCT, "benchmarks")}
    assert not {name: count for name, count in counts.items() if count > MOST_PARAMETERS}


def named_arguments(node: Function) -> list[str]:
    """The names a caller gives values to: all but self and cls."""
    given = node.args
    return [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs) if argument.arg not in ("self", "cls")]


def test_file_names_say_what_is_inside() -> None:
    assert not [file for file in sources(*FOLDERS) if Path(file).name in VAGUE_NAMES]


def test_signatures_name_their_keywords() -> None:
    found = {name for name, node in functions(*PRODUCT) if node.args.kwarg is not None}
    assert found - OPEN_KEYWORDS.keys() == set(), "name the keywords, or give the reason in OPEN_KEYWORDS"
    assert OPEN_KEYWORDS.keys() - found == set(), "take these off the list"


def test_a_users_mistake_never_meets_an_assert() -> None:
    assert not [f"{file}:{node.lineno}" for file, tree in sources(*PRODUCT).items() for node in ast.walk(tree) if isinstance(node, ast.Assert)]


def test_the_core_does_not_print() -> None:
    assert not [f"{file}:{node.lineno}" for file, tree in sources("ftcore").items() for node in ast.walk(tree) if is_call_of(node, "print")]


def is_call_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def test_libraries_are_reached_through_their_doors() -> None:
    found = {(library, file) for file, tree in sources(*PRODUCT).items() for node in ast.walk(tree) for library in DOORS if imports(node, library)}
    assert not [(library, file) for library, file in sorted(found) if file not in DOORS[library]]
    assert {library for library, _ in found} == DOORS.keys()


def imports(node: ast.AST, library: str) -> bool:
    """Whether a statement imports `library` or something in it."""
    return any(f"{name}.".startswith(f"{library}.") for name in imported(node))


def imported(node: ast.AST) -> list[str]:
    """The full names of what a statement imports; empty for any other statement."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def test_the_launcher_knows_of_the_core_only_the_contract() -> None:
    names = {(file, name) for file, tree in sources("launcher").items() for node in ast.walk(tree) for name in imported(node) if imports(node, "ftcore")}
    assert not [(file, name) for file, name in sorted(names) if not f"{name}.".startswith("ftcore.spec.")]
    assert names


def test_nothing_is_unfinished_or_mocked() -> None:
    own = Path(__file__).resolve()
    paths = [ROOT / file for file in sources(*FOLDERS) if (ROOT / file) != own]
    found = [(path.relative_to(ROOT).as_posix(), word) for path in paths for word in UNFINISHED if word in path.read_text(encoding="utf-8")]
    assert not found


def test_presets_are_complete_json() -> None:
    presets = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "ds_configs").glob("*.json"))}
    wanted = {"zero0.json", "zero1.json", "zero2.json", "zero3.json", "zero2_offload.json", "zero3_offload.json", "zero3_nvme.json"}
    assert wanted <= presets.keys()
    assert not [name for name, preset in presets.items() if "auto" in leaves(preset)]


def leaves(value: Any) -> list[Any]:
    """Every value below `value` that holds no others."""
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def test_every_json_file_of_the_packages_parses() -> None:
    files = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.json")]
    assert len(files) >= 2
    for path in files:
        json.loads(path.read_text(encoding="utf-8"))
