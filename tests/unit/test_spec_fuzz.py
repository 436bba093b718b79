"""Any file gives a resolved spec or an error with problems; nothing else ever comes out."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcore.spec.aliases import ALIASES
from ftcore.spec.errors import ClusterError, SpecError
from ftcore.spec.names import known_keys
from ftcore.spec.resolved import ResolvedSpec
from launcher.resolve import Options, check_spec, read_and_resolve

_KEYS = [(*section.split("."), key) for section, keys in known_keys().items() for key in keys]
_DS_KEYS = [
    ("zero", "overrides", "train_batch_size"),
    ("zero", "overrides", "zero_optimization"),
    ("zero", "overrides", "zero_optimization", "zero_hpz_partition_size"),
    ("zero", "overrides", "zero_optimization", "offload_param"),
    ("zero", "overrides", "fp16"),
    ("zero", "overrides", "steps_per_print"),
    ("zero", "overrides", "x"),
]
_WORDS = ["lora", "qlora", "sgd", "muon", "warmup_stable_decay", "bf16", "fp32", "cpu", "nvme", "all-linear", "auto", "1e-5", "prompt_completion"]
_WORDS += ["a,b", "${HOME}", "${", "2h30m", "24 GiB"]
_REFERENCES = ["builtin:extraction/train", "package:json/x", "package:", "~", "~x/y", "/", "."]
_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(0, 4), st.floats(), st.text(max_size=8), st.sampled_from(_WORDS), st.sampled_from(_REFERENCES)
)
_INNER_KEYS = st.text(max_size=4) | st.sampled_from(["path", "stage", "columns"])
_VALUES = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_INNER_KEYS, inner, max_size=3), max_leaves=5)
_TOP_KEYS = [(name,) for name in [*ALIASES, *known_keys()] if "." not in name]
_PATHS = st.one_of(st.sampled_from(_KEYS), st.sampled_from(_DS_KEYS), st.sampled_from(_TOP_KEYS), st.tuples(st.text(max_size=5)))
_SETS = st.tuples(_PATHS, st.text(max_size=8) | _VALUES.map(str)).map(lambda pair: f"{'.'.join(pair[0])}={pair[1]}")
_BASE = """\
model: {model_name_or_path: gpt2}
data: {train: {path: builtin:extraction/train}}
cluster: {slots: 2}
"""


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """A right spec with up to eight keys set to anything."""
    spec: dict[str, Any] = yaml.safe_load(_BASE)
    for path in draw(st.lists(_PATHS, max_size=8)):
        home: Any = spec
        for part in path[:-1]:
            home = home.setdefault(part, {}) if isinstance(home, dict) else home
        if isinstance(home, dict):
            home[path[-1]] = draw(_VALUES)
    return spec


def outcome(raw: bytes, suffix: str, sets: tuple[str, ...] = ()) -> None:
    """Resolves `raw` as a spec file; an error must carry problems, and `check_spec` must tell the same ones."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"spec{suffix}")
        path.write_bytes(raw)
        options = Options(spec_path=path, sets=sets)
        try:
            resolution = read_and_resolve(options)
        except (SpecError, ClusterError) as error:
            problems = list(error.problems)
        else:
            problems = []
            assert ResolvedSpec.from_json(resolution.resolved.to_json()) == resolution.resolved
            json.loads(resolution.ds_config)
            resolution.resolved.to_json().encode()
        assert check_spec(options) == problems and all(problem.what for problem in problems)


@settings(max_examples=250, deadline=None)
@given(specs())
def test_any_yaml_mapping(spec: dict[str, Any]) -> None:
    outcome(yaml.safe_dump(spec, allow_unicode=True).encode("utf-8", "surrogatepass"), ".yaml")


@settings(max_examples=250, deadline=None)
@given(specs())
def test_any_json_mapping(spec: dict[str, Any]) -> None:
    outcome(json.dumps(spec).encode(), ".json")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(alphabet="ab:-[]{}&*!|>'\"#%@`?,<~\\ \n\t0", max_size=40).map(str.encode), st.sampled_from([".yaml", ".json"]))
def test_any_bytes(raw: bytes, suffix: str) -> None:
    outcome(raw, suffix)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=12) | _SETS, max_size=4))
def test_any_sets(sets: list[str]) -> None:
    outcome(_BASE.encode(), ".yaml", tuple(sets))
