"""zero.overrides: only what DeepSpeed reads, has an effect, and does not contradict the spec."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ftcore.spec.document import KeyPath
from ftcore.spec.errors import Problem
from ftcore.spec.sections import Spec
from launcher.ds_json.keys import overrides_schema
from launcher.references import absolute, is_class
from launcher.schema_check import Found, Schema, advise_from_schema, check_schema

HOME: KeyPath = ("zero", "overrides")
SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def check_overrides(spec: Spec, world_size: int | None, *, other_stage: bool = False) -> list[Found]:
    """Every mistake in zero.overrides, with paths from the top of the spec. Rules about the number of ranks rest when it is not known.

    `other_stage`: the stage is not the one that the spec was written for, and what has no effect in it is no mistake.
    """
    overrides = spec.zero.overrides
    schema = overrides_schema()
    autos = set(_paths_of_auto(overrides, ()))
    found = [Found(path, Problem(what='"auto" is left for nobody to fill in', fix="give the value, or leave the key out")) for path in sorted(autos, key=str)]
    sized = _sizes_problem(overrides, world_size)
    for item in check_schema(overrides, schema, advise_from_schema):
        if item.path in autos:
            continue
        found.append(Found(item.path, sized) if sized and item.path[0] in SIZES else item)
    zero = overrides.get("zero_optimization")
    wrong = {item.path for item in found}
    rules = [*_profile_rules(overrides), *_precision_rules(overrides, spec), *_leaf_rules(zero)]
    if isinstance(zero, dict) and not other_stage:
        rules += [*_stage_rules(zero, spec, schema), *_value_rules(zero, spec)]
    found += [item for item in rules if item.path not in wrong]
    return [Found((*HOME, *item.path), item.problem) for item in found]


def _paths_of_auto(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    if value == "auto":
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths_of_auto(inner, (*path, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _paths_of_auto(inner, (*path, position))


def _sizes_problem(overrides: dict[str, Any], world_size: int | None) -> Problem | None:
    """DeepSpeed's three batch sizes, checked against each other before they are refused: who moves a config here learns both facts."""
    total, *factors = (overrides.get(name) for name in SIZES)
    given = [value for value in factors if type(value) is int and value > 0]
    if world_size is None or type(total) is not int:
        return None
    product = world_size
    for value in given:
        product *= value
    rest = total % product
    if rest == 0:
        return None
    below = total - rest
    near = f"{below} or {below + product}" if below else f"{product}"
    terms = " x ".join([*(str(value) for value in given), f"{world_size} ranks"])
    return Problem(
        what=f"train_batch_size {total} is not a multiple of {product} ({terms}); the nearest that are: {near}",
        fix=f"remove it: batch.* decides; batch.global_batch_size may be any number, {total} too, and micro-steps follow from batch.micro_batch_tokens",
    )


def _stage_rules(zero: dict[str, Any], spec: Spec, schema: Schema) -> Iterator[Found]:
    rules = schema["properties"]["zero_optimization"]["properties"]
    for key in zero:
        stages = rules.get(key, {}).get("x-stages")
        if stages is not None and spec.zero.stage not in stages:
            needs = " or ".join(str(stage) for stage in stages)
            problem = Problem(what=f"{key} has no effect at ZeRO stage {spec.zero.stage}; it is for stage {needs}", fix="remove it")
            yield Found(("zero_optimization", key), problem)
    for key, device in (("offload_optimizer", spec.zero.offload_optimizer), ("offload_param", spec.zero.offload_param)):
        if key in zero and device == "none":
            problem = Problem(what=f"{key} is tuned here, but zero.{key} is none", fix=f"set zero.{key}: cpu, or remove it")
            yield Found(("zero_optimization", key), problem)


def _profile_rules(overrides: dict[str, Any]) -> Iterator[Found]:
    profiler = overrides.get("flops_profiler")
    file = profiler.get("output_file") if isinstance(profiler, dict) else None
    if isinstance(file, str) and "\0" not in file and Path(absolute(file)).exists():
        problem = Problem(what=f"{absolute(file)} exists, and DeepSpeed would write over it", fix="name a new file")
        yield Found(("flops_profiler", "output_file"), problem)


def _leaf_rules(zero: Any) -> Iterator[Found]:
    """DeepSpeed passes over a leaf class that is not there, and then gathers each expert by itself."""
    leaf = zero.get("leaf_module") if isinstance(zero, dict) else None
    classes = leaf.get("classes") if isinstance(leaf, dict) else None
    for position, name in enumerate(classes if isinstance(classes, list) else ()):
        if isinstance(name, str) and "." in name and not is_class(name):
            fix = "write PACKAGE.MODULE.CLASS as in an import, or the class's name alone"
            yield Found(("zero_optimization", "leaf_module", "classes", position), Problem(what=f"there is no class {name}", fix=fix))


def _precision_rules(overrides: dict[str, Any], spec: Spec) -> Iterator[Found]:
    if isinstance(overrides.get("fp16"), dict) and spec.train.precision != "fp16":
        what = f"fp16 is tuned here, but train.precision is {spec.train.precision}"
        yield Found(("fp16",), Problem(what=what, fix="use train.precision: fp16, or remove it"))


def _value_rules(zero: dict[str, Any], spec: Spec) -> Iterator[Found]:
    if zero.get("reduce_scatter") is False and spec.zero.stage == 3:
        what = "reduce_scatter: false scales gradients another way at stage 3"
        yield Found(("zero_optimization", "reduce_scatter"), Problem(what=what, fix="remove it"))
