"""Any DeepSpeed JSON gives a spec that DeepSpeed's own class reads, or a list of problems."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ftcore.spec.errors import Problem
from launcher.ds_json.keys import json_schema, keys_of_spec
from launcher.ds_json.relaxed import read_ds_json, without_comments
from launcher.ds_json.training import SIZES
from launcher.ds_json.walk import value_at
from launcher.resolve import Options, check_spec, read_and_resolve
from launcher.schema_check import Schema

_WORDS = st.sampled_from(["auto", "cpu", "AdamW", "x", "1e5"])
_ANYTHING = st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | _WORDS | st.lists(st.integers(), max_size=2)


def _values(rule: Schema) -> st.SearchStrategy[Any]:
    """What fits a rule, mostly; "auto" or anything else now and then."""
    kind = rule.get("type", "any")
    if "properties" in rule:
        fitting: st.SearchStrategy[Any] = _mappings(rule, most=4)
    elif "enum" in rule:
        fitting = st.sampled_from(rule["enum"])
    elif kind == "boolean":
        fitting = st.booleans()
    elif kind in ("integer", "number"):
        low = rule.get("minimum", -3)
        fitting = st.integers(low, low + 9) | st.just(5e8)
    else:
        fitting = st.sampled_from(["Adam", "WarmupLR", "WarmupDecayLR", "/nvme", [0.9, 0.99], ["a.B"]])
    return fitting | fitting | st.just("auto") | _ANYTHING


def _mappings(rule: Schema, most: int) -> st.SearchStrategy[dict[str, Any]]:
    names = st.lists(st.sampled_from(sorted(rule["properties"])), max_size=most, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: _values(rule["properties"][name]) for name in chosen}))


_ZERO = _values(json_schema()["properties"]["zero_optimization"])
_FILES = st.tuples(_mappings(json_schema(), most=5), _ZERO).map(lambda pair: {**pair[0], "zero_optimization": pair[1]})


def _take_out(data: dict[str, Any], problems: list[Problem]) -> None:
    """Takes each key out of the JSON that a problem names, under its own name or the spec's; so many problems, so many keys."""
    names = {key: path for path, key in keys_of_spec().items()}
    size = len(json.dumps(data))
    for problem in problems:
        path: Any = names.get(problem.where, tuple(problem.where.partition("[")[0].split(".")))
        # A key of the spec that no key of the JSON is the same as: the block that decides it goes.
        path = _BLOCKS.get(problem.where, path)
        home = value_at(data, path[:-1])
        for name in (path[-1], path[-1].removeprefix("stage3_"), *_OLD) if isinstance(home, dict) else ():
            home.pop(name, None)
        for name in _OF_SECTION.get(problem.where.partition(".")[0], ()) if problem.where in _BLOCKS or path not in names.values() else ():
            data.pop(name, None)
    assert len(json.dumps(data)) < size, problems


_BLOCKS = {
    "train.precision": ("fp16",),
    "zero.nvme_path": ("zero_optimization", "offload_param"),
    "optimizer.type": ("optimizer",),
    "optimizer.learning_rate": ("optimizer",),
}
_OF_SECTION = {"batch": SIZES, "schedule": ("scheduler",), "optimizer": ("optimizer", "scheduler")}
"""Section of the spec -> keys at the top of a JSON that decide what is in it."""
_OLD = ("cpu_offload", "cpu_offload_param", "bfloat16")


@settings(max_examples=80, deadline=None)
@given(_FILES)
def test_any_mapping_of_deepspeeds_keys(data: dict[str, Any]) -> None:
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.runtime.config import DeepSpeedConfig

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "ds.json").write_text(json.dumps(data))
        spec = {"model": {"model_name_or_path": "gpt2"}, "data": {"train": {"path": "builtin:extraction/train"}}, "zero": {"config": f"{folder}/ds.json"}}
        Path(folder, "spec.json").write_text(json.dumps({**spec, "cluster": {"slots": 1}}))
        options = Options(spec_path=f"{folder}/spec.json")
        while problems := check_spec(options):
            assert all(problem.what for problem in problems)
            _take_out(data, problems)
            Path(folder, "ds.json").write_text(json.dumps(data))
        resolution = read_and_resolve(options)
        assert '"auto"' not in resolution.ds_config
        DeepSpeedConfig(json.loads(resolution.ds_config))


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='{}[]":,/*# \n\\ax1', max_size=40) | st.text(max_size=20))
def test_any_text(text: str) -> None:
    raw = text.encode("utf-8", errors="surrogatepass")
    assert len(without_comments(raw).decode("utf-8", errors="surrogateescape")) == len(raw.decode("utf-8", errors="surrogateescape"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ds.json")
        path.write_bytes(raw)
        document = read_ds_json(str(path), "ds.json")
        assert document.readable or document.problems
