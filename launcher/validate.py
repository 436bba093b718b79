"""Everything that is wrong with a spec, at once: schema, rules between keys, what it points at, DeepSpeed overrides."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from ftcore.spec.document import KeyPath, describe
from ftcore.spec.errors import Problem
from ftcore.spec.names import advise
from ftcore.spec.resolved import build
from ftcore.spec.sections import Spec
from launcher.ds_json.overrides import check_overrides
from launcher.ds_json.rules import check_group
from launcher.references import check_adapter, check_data, check_model, check_nvme, check_revision, check_template
from launcher.rules.every import RULES
from launcher.rules.profiling import check_ranks
from launcher.schema_check import SPEC_SCHEMA, Found, Schema, check_schema, load_schema
from launcher.spec_source import Draft

TEXT_OR_LIST = (
    *(("method", "target_modules"), ("method", "modules_to_save"), ("train", "keep_in_fp32")),
    *(("cluster", "ssh_options"), ("cluster", "forward_env"), ("cluster", "scheduler", "sbatch_args")),
)
"""Keys where one text stands for a list of it."""


def find_problems(draft: Draft, world_size: int | None) -> list[Problem]:
    """All problems of a readable draft, by place. `world_size` None: the hosts are not known, and rules about it rest."""
    found = [item for item in check_schema(draft.data, load_schema(SPEC_SCHEMA), _advise) if not _is_of_blank(item, draft)]
    wrong = [*(item.path for item in found), *draft.blank]
    spec = partial_spec(draft.data, wrong)
    for rule in RULES:
        if not any(_touches(tuple(key.split(".")), wrong) for key in rule.reads):
            found += [Found(tuple(problem.where.split(".")), problem) for problem in rule.check(spec, draft)]
    if world_size is not None and not _touches(("profiling",), wrong):
        found += check_ranks(spec, world_size)
    found += [item for item in _references(spec) if not _touches(item.path, wrong)]
    if isinstance(spec.zero.overrides, dict):
        # What rests on another key of zero has to wait for that one; types and unknown keys have not.
        is_open = _touches(("zero",), [path for path in wrong if path[:2] != ("zero", "overrides")])
        found += check_overrides(spec, world_size, other_stage=draft.other_stage or is_open)
        found += [] if is_open else check_group(spec, world_size)
    problems = dict.fromkeys(draft.located(item.problem, item.path) for item in found)
    return sorted([*draft.problems, *problems], key=lambda problem: (problem.file, problem.line or 0))


def partial_spec(data: dict[str, Any], wrong: list[KeyPath]) -> Spec:
    """The Spec of what is right in `data`; defaults stand in for wrong values and empty paths for missing ones."""
    data = copy.deepcopy(data)
    for path in wrong:
        _prune(data, path)
    data.setdefault("model", {}).setdefault("model_name_or_path", "")
    sets = data.setdefault("data", {})
    named = (data_set for name in ("train_sets", "eval_sets") for data_set in (sets.get(name) or {}).values())
    for data_set in (sets.get("train"), sets.get("eval"), *named):
        if data_set is not None:
            data_set.setdefault("path", "")
    for group in data.get("optimizer", {}).get("parameter_groups", ()):
        group.setdefault("pattern", "")
    return build_spec(data)


def build_spec(data: dict[str, Any]) -> Spec:
    """The Spec of data that fits the schema."""
    data = copy.deepcopy(data)
    for *sections, name in TEXT_OR_LIST:
        home = data
        for section in sections:
            home = home.get(section, {})
        if isinstance(home.get(name), str):
            home[name] = [home[name]]
    recomputed = data.get("train", {}).get("gradient_checkpointing")
    if isinstance(recomputed, bool):
        data["train"]["gradient_checkpointing"] = "full" if recomputed else "none"
    accelerator = data.get("hardware", {}).get("accelerator")
    if type(accelerator) is int:
        # 4090 is a name, but to YAML a number.
        data["hardware"]["accelerator"] = str(accelerator)
    return build(Spec, data)


def _is_of_blank(item: Found, draft: Draft) -> bool:
    """Whether a mistake is about the null that stands for a value which was not taken; that a key is unknown is said all the same."""
    return item.path in draft.blank and item.problem.what.endswith(f"got {describe(None)}")


def _prune(data: Any, path: KeyPath) -> None:
    """Takes the value at `path` out; a list loses the key that holds it."""
    for part in path[:-1]:
        if not isinstance(data, dict) or part not in data:
            return
        inner = data[part]
        if isinstance(inner, list):
            break
        data = inner
    else:
        part = path[-1] if path else ""
    if isinstance(data, dict):
        data.pop(part, None)


def _touches(path: KeyPath, wrong: list[KeyPath]) -> bool:
    """Whether one of `wrong` lies at, above or below `path`."""
    return any(item[: len(path)] == path[: len(item)] for item in wrong)


def _references(spec: Spec) -> Iterator[Found]:
    checks = [
        (("model", "model_name_or_path"), spec.model.model_name_or_path, check_model),
        (("model", "revision"), spec.model.revision, check_revision),
        *(((*key.split(".", 2), "path"), data_set.path, check_data) for key, data_set in spec.data.all_sets.items()),
        (("data", "chat_template"), spec.data.chat_template, check_template),
        (("method", "adapter_name_or_path"), spec.method.adapter_name_or_path, check_adapter),
        (("zero", "nvme_path"), spec.zero.nvme_path, check_nvme),
    ]
    for path, value, check in checks:
        problem = check(value) if value else None
        if problem is not None:
            yield Found(path, problem)


def _advise(path: KeyPath, key: str, schema: Schema) -> str:
    return advise(".".join(str(part) for part in path), key)
