"""Each key of a DeepSpeed JSON put where it belongs: what a key of the spec says, what goes on to DeepSpeed, what is ignored, what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ftcore.spec.document import KeyPath, dotted
from ftcore.spec.errors import Problem
from launcher.ds_json.keys import json_schema, rule_at
from launcher.schema_check import Found, Schema, advise_from_schema, check_schema

ZERO = "zero_optimization"
OFFLOADS = ("offload_param", "offload_optimizer")
_SHORT = (
    *("prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold", "max_live_parameters", "max_reuse_distance"),
    *("gather_16bit_weights_on_model_save", "module_granularity_threshold", "use_all_reduce_for_fetch_params", "allgather_sequential"),
)
"""Names that DeepSpeed also takes without their `stage3_` (field names in zero/config.py)."""
_MOST_NAMED = 12
"""More keys than these are no help to one who wrote another."""
_OLD: dict[str, tuple[str, str]] = {"cpu_offload": ("offload_optimizer", "device"), "cpu_offload_param": ("offload_param", "device")}


@dataclass(frozen=True, slots=True)
class Remark:
    """What a user should know of a key of the JSON; nothing is wrong with it."""

    path: KeyPath
    text: str


@dataclass(slots=True)
class Sorted:
    """The keys of a JSON by what becomes of them. Grows while the JSON is read."""

    said: dict[KeyPath, Any] = field(default_factory=dict)
    """Values that keys of the spec stand for."""
    passed: dict[KeyPath, Any] = field(default_factory=dict)
    """Values for DeepSpeed that the spec has no key for."""
    remarks: list[Remark] = field(default_factory=list)
    problems: list[Found] = field(default_factory=list)
    open: set[KeyPath] = field(default_factory=set)
    """Keys that are "auto"."""

    def refuse(self, path: KeyPath, what: str, fix: str) -> None:
        """Adds a problem at a key."""
        self.problems.append(Found(path, Problem(what=what, fix=fix)))

    def remark(self, path: KeyPath, text: str) -> None:
        """Adds a remark on a key."""
        self.remarks.append(Remark(path, text))


def modernise(data: dict[str, Any], lines: dict[KeyPath, int], found: Sorted) -> dict[str, Any]:
    """The data under today's names, without notes to the reader (keys that begin with _, # or //) and with `5e8` as a whole number where one is meant.

    `lines` gets the place of each new name; a name given under both is a problem.
    """
    clean: dict[str, Any] = without_notes(data)
    _move(clean, ("bfloat16",), ("bf16",), lines, found)
    _move(clean, ("aio", "thread_count"), ("aio", "intra_op_parallelism"), lines, found)
    if clean.get("steps_per_print") == "Infinity":
        # As Accelerate writes it; the presets' is as good as never.
        del clean["steps_per_print"]
    if clean.get("communication_data_type", "") is None:
        # DeepSpeed's own default, as is null in what follows.
        del clean["communication_data_type"]
    zero = clean.get(ZERO)
    if isinstance(zero, dict):
        for name in [name for name in (*OFFLOADS, "overlap_comm") if zero.get(name, {}) is None]:
            del zero[name]
        for name in _SHORT:
            _move(clean, (ZERO, name), (ZERO, f"stage3_{name}"), lines, found)
        for name, (block, key) in _OLD.items():
            if zero.get(name) is True:
                zero[name] = "cpu"
                _move(clean, (ZERO, name), (ZERO, block, key), lines, found)
            elif zero.get(name) in (False, None, "auto"):
                zero.pop(name, None)
    whole: dict[str, Any] = _whole_numbers(clean, json_schema())
    return whole


def check_types(data: dict[str, Any], found: Sorted) -> set[KeyPath]:
    """Adds unknown keys, wrong types and values out of range to `found`; returns their paths. "auto" may stand for any known key."""
    wrong: set[KeyPath] = set()
    for item in check_schema(data, json_schema(), _advise):
        if value_at(data, item.path) == "auto" and _is_known(item.path):
            continue
        found.problems.append(item)
        wrong.add(item.path)
    return wrong


def walk(data: dict[str, Any], stage: int, wrong: set[KeyPath], found: Sorted) -> None:
    """Sorts every right value of `data` into `found`, for a run of this ZeRO stage; what is "auto" is left out, for the spec or the preset to fill in."""
    _Walk(stage, wrong, found).section(data, json_schema(), (), is_said=False)


@dataclass(frozen=True, slots=True)
class _Walk:
    stage: int
    wrong: set[KeyPath]
    found: Sorted

    def section(self, data: dict[str, Any], schema: Schema, above: KeyPath, *, is_said: bool) -> None:
        """`is_said`: the section stands for one of the spec, so that keys without a mark of their own do, too."""
        for name, value in data.items():
            path, rule = (*above, name), schema["properties"].get(name)
            if value == "auto":
                self.found.open.add(path)
            elif rule is not None and path not in self.wrong and not (isinstance(value, list) and self._holds_wrong(path)):
                self._key(path, value, rule, is_said=rule.get("x-json") == "spec" or (is_said and "x-json" not in rule))

    def _holds_wrong(self, path: KeyPath) -> bool:
        return any(wrong[: len(path)] == path for wrong in self.wrong)

    def _key(self, path: KeyPath, value: Any, rule: Schema, *, is_said: bool) -> None:
        stages, becomes = rule.get("x-stages"), rule.get("x-json")
        if stages is not None and self.stage not in stages and path[-1] not in OFFLOADS:
            self.found.remark(path, f"ignored: no effect at ZeRO stage {self.stage}")
        elif isinstance(value, dict) and "properties" in rule and becomes in (None, "spec"):
            self.section(value, rule, path, is_said=is_said)
        elif is_said:
            self.found.said[path] = value
        elif becomes is None:
            self.found.passed[path] = value
        elif becomes != "silent" and not is_off(value, rule):
            _ignore_or_refuse(path, rule, self.found)


def is_off(value: Any, rule: Schema) -> bool:
    """Whether a key does nothing with this value: `false`, a section with `enabled: false`, or a value that the schema names."""
    if isinstance(value, dict):
        if value.get("enabled", True) in (False, "auto"):
            return True
        inner = rule.get("properties", {})
        return all(name in inner and (("x-off" in inner[name] and is_off(own, inner[name])) or own == "auto") for name, own in value.items())
    offs = rule.get("x-off", [False, None])
    return any(value == off and isinstance(value, bool) == isinstance(off, bool) for off in offs)


def value_at(data: Any, path: KeyPath) -> Any:
    """The value at `path`; None where there is none."""
    for part in path:
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data


def _ignore_or_refuse(path: KeyPath, rule: Schema, found: Sorted) -> None:
    known = rule_at(path) or {}
    if rule["x-json"] == "ignored":
        fix = known.get("x-fix", "")
        instead = "" if fix.startswith("remove") else f"; {fix}"
        found.remark(path, f"ignored: {known['x-refused'].removeprefix('it has no effect here: ')}{instead}")
    else:
        found.refuse(path, known["x-refused"], known["x-fix"])


def _advise(path: KeyPath, key: str, schema: Schema) -> str:
    if path and rule_at((key,)) is not None:
        return f"move it out of {dotted(path)}, to the top"
    if rule_at((ZERO, key)) is not None:
        return f"move it into {ZERO}"
    advice = advise_from_schema(path, key, schema)
    is_long = len(schema.get("properties", {})) > _MOST_NAMED
    return "remove it: DeepSpeed reads no such key here" if is_long and advice.startswith("valid here") else advice


def _is_known(path: KeyPath) -> bool:
    named = tuple(part for part in path if isinstance(part, str))
    return rule_at(named) is not None


def without_notes(data: Any) -> Any:
    """The data without the keys that are notes to the reader, at every depth."""
    if isinstance(data, dict):
        return {key: without_notes(value) for key, value in data.items() if not key.startswith(("_", "#", "//"))}
    return [without_notes(value) for value in data] if isinstance(data, list) else data


def _whole_numbers(value: Any, rule: Schema) -> Any:
    if isinstance(value, dict):
        return {key: _whole_numbers(inner, rule.get("properties", {}).get(key, {})) for key, inner in value.items()}
    return int(value) if rule.get("type") == "integer" and isinstance(value, float) and value.is_integer() else value


def _move(data: dict[str, Any], old: tuple[str, ...], new: tuple[str, ...], lines: dict[KeyPath, int], found: Sorted) -> None:
    home = value_at(data, old[:-1])
    if not isinstance(home, dict) or old[-1] not in home:
        return
    value = home.pop(old[-1])
    target: Any = data
    for part in new[:-1]:
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            return
    if target.get(new[-1], "auto") != "auto":
        found.refuse(old, f"it is another name of `{dotted(new)}`, which is given too", "keep one of them")
        return
    target[new[-1]] = value
    for path in [path for path in lines if path[: len(old)] == old]:
        lines[(*new, *path[len(old) :])] = lines[path]
