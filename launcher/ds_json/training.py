"""What a DeepSpeed JSON says of precision, batch sizes, optimizer and schedule, as keys of the spec."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ftcore.spec.document import KeyPath
from launcher.ds_json.walk import Sorted
from launcher.schema_check import SPEC_SCHEMA, load_schema

OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "muon": "muon", "adafactor": "adafactor"}
"""DeepSpeed's optimizers (case does not count) -> ours. Its Adam is AdamW unless `adam_w_mode` is false (runtime/engine.py)."""
SCHEDULES = {"WarmupLR": "constant_with_warmup", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
"""DeepSpeed's schedules (runtime/lr_schedules.py) -> ours."""
BF16_NAMES = ("bfloat16", "bf16", "torch.bfloat16")
TYPE, SCHEDULE = ("optimizer", "type"), ("scheduler", "type")
SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_PARAMS = {"lr": "learning_rate", "eps": "adam_epsilon", "weight_decay": "weight_decay", "momentum": "momentum"}
_MICRO_STEPS = "micro-steps follow from batch.micro_batch_tokens"


@dataclass(frozen=True, slots=True)
class Statement:
    """A value for a key of the spec."""

    key: str
    """Dotted."""
    value: Any
    path: KeyPath
    """Where the JSON says so."""


def precision_statement(found: Sorted, given: str | None) -> Statement | None:
    """train.precision, where the JSON decides it; `given` is what the spec says. Two precisions at once are a problem (DeepSpeed: an assertion)."""
    said = found.said
    flags = {name: said.get((name, "enabled")) for name in ("bf16", "fp16", "torch_autocast")}
    chosen = [name for name, enabled in flags.items() if enabled]
    if len(chosen) > 1:
        found.refuse((chosen[1], "enabled"), f"{' and '.join(chosen)} are both enabled", 'enable one of them, and set the other one\'s "enabled" to false')
        return None
    if chosen == ["torch_autocast"]:
        dtype = str(said.get(("torch_autocast", "dtype"), "bfloat16"))
        if dtype not in BF16_NAMES:
            found.refuse(("torch_autocast", "dtype"), f"autocast to {dtype} is not offered", "use bfloat16, or fp16 with the block fp16")
            return None
        return Statement("train.precision", "bf16_autocast", ("torch_autocast", "enabled"))
    if chosen:
        return Statement("train.precision", chosen[0], (chosen[0], "enabled"))
    refused = [name for name in ("bf16", "fp16") if flags[name] is False]
    if given in refused:
        found.refuse((given, "enabled"), f"false contradicts train.precision: {given}", "remove it here, or change train.precision")
    elif given is None and "bf16" in refused:
        return Statement("train.precision", "fp32", ("bf16", "enabled"))
    return None


def batch_statement(found: Sorted, world_size: int | None, *, size_given: bool) -> Statement | None:
    """batch.global_batch_size: DeepSpeed's train_batch_size, or else micro-batch x accumulation x ranks where the spec gives no size.

    Micro-batch and accumulation say how an update is split, which is decided by batch.micro_batch_tokens here.
    """
    total, micro, steps = (found.said.get((name,)) for name in SIZES)
    if steps is None and SIZES[2:] not in found.open:
        # DeepSpeed's own default (runtime/config.py).
        steps = 1
    if total is not None:
        _refuse_unequal(found, total)
        for name in SIZES[1:]:
            if (name,) in found.said:
                found.remark((name,), f"ignored: train_batch_size decides, and {_MICRO_STEPS}")
        return Statement("batch.global_batch_size", total, SIZES[:1])
    if micro is not None and steps is not None and world_size is not None and not size_given:
        size = micro * steps * world_size
        found.remark((SIZES[1],), f"read as batch.global_batch_size {size}: {micro} samples x {steps} steps x {world_size} ranks; {_MICRO_STEPS}")
        return Statement("batch.global_batch_size", size, (SIZES[1],))
    for name in SIZES[1:]:
        if (name,) in found.said:
            found.remark((name,), f"ignored: {_MICRO_STEPS}, and batch.global_batch_size is the size of an update")
    return None


def _refuse_unequal(found: Sorted, total: int) -> None:
    """Sizes that are wrong on any number of ranks: DeepSpeed would refuse them on each. Those of other ranks than these say how an update was split there."""
    factors = {name: found.said[(name,)] for name in SIZES[1:] if (name,) in found.said}
    product = math.prod(factors.values())
    rest = total % product
    if rest:
        near = f"{total - rest} and {total - rest + product}" if total > product else str(product)
        terms = " x ".join(f"{name} {value}" for name, value in factors.items())
        what = f"{total} is no multiple of {terms}, on any number of ranks; the nearest that are: {near}"
        found.refuse(SIZES[:1], what, f"use one of them, or remove {' and '.join(factors)}: {_MICRO_STEPS}")


def optimizer_statements(found: Sorted, given: str | None) -> Iterator[Statement]:
    """The section optimizer; `given` is the type in the spec. An optimizer that is not offered is a problem, and its parameters are then not looked at."""
    name, kind = found.said.get(TYPE), given
    if name is not None:
        kind = OPTIMIZERS.get(str(name).lower(), "")
        offered = load_schema(SPEC_SCHEMA)["properties"]["optimizer"]["properties"]["type"]["enum"]
        if kind not in offered:
            removed = "DeepSpeed has removed the 1-bit optimizers" if str(name).lower().startswith(("onebit", "zeroone")) else f"{name} is not offered"
            known = ", ".join(sorted(theirs for theirs, ours in OPTIMIZERS.items() if ours in offered))
            found.refuse(TYPE, removed, f"use one of {known}, or remove the block: the section optimizer of the spec decides")
            found.problems = [item for item in found.problems if item.path[:2] != ("optimizer", "params")]
            return
        yield Statement("optimizer.type", kind, TYPE)
    for theirs, ours in _PARAMS.items():
        path = ("optimizer", "params", theirs)
        if path in found.said and not (theirs == "lr" and ("scheduler", "params", "warmup_max_lr") in found.said):
            yield Statement("optimizer.muon_momentum" if (kind, ours) == ("muon", "momentum") else f"optimizer.{ours}", found.said[path], path)
    path = ("optimizer", "params", "betas")
    if path in found.said:
        betas = found.said[path]
        if len(betas) != 2:
            found.refuse(path, f"two numbers expected, got {len(betas)}", "write [0.9, 0.999]")
        else:
            yield from (Statement(f"optimizer.adam_beta{position}", beta, path) for position, beta in enumerate(betas, start=1))


def schedule_statements(found: Sorted, max_steps: int | None) -> Iterator[Statement]:
    """The section schedule, and the highest learning rate; `max_steps` is the length of the run, where the spec gives one."""
    name = found.said.get(SCHEDULE)
    if name is None:
        return
    if name not in SCHEDULES:
        found.refuse(SCHEDULE, f"{name} is not offered", f"use one of {', '.join(SCHEDULES)}, or remove the block: the section schedule of the spec decides")
        return
    yield Statement("schedule.lr_scheduler_type", SCHEDULES[name], SCHEDULE)
    params: dict[str, Any] = {str(path[2]): value for path, value in found.said.items() if path[:2] == ("scheduler", "params")}
    yield from _schedule_values(params)
    _schedule_remarks(found, name, params, max_steps)


def _schedule_values(params: dict[str, Any]) -> Iterator[Statement]:
    keys = {"warmup_max_lr": "optimizer.learning_rate", "warmup_num_steps": "schedule.warmup_steps", "cos_min_ratio": "schedule.min_lr_ratio"}
    for theirs, ours in keys.items():
        if theirs in params:
            yield Statement(ours, params[theirs], ("scheduler", "params", theirs))


def _schedule_remarks(found: Sorted, name: str, params: dict[str, Any], max_steps: int | None) -> None:
    home = ("scheduler", "params")
    for lowest in ("warmup_min_lr", "warmup_min_ratio"):
        if params.get(lowest):
            found.refuse((*home, lowest), f"a warm-up from {params[lowest]} is not offered: the learning rate rises from 0", "use 0, or remove it")
    for key in sorted(set(params) & {"warmup_max_lr", "warmup_min_lr"} if name == "WarmupCosineLR" else set(params) & {"warmup_min_ratio", "cos_min_ratio"}):
        found.refuse((*home, key), f"{name} has no {key}", "remove it")
    if params.get("warmup_num_steps") and params.get("warmup_type", "log") == "log":
        found.remark((*home, "warmup_num_steps"), "the warm-up is linear here; DeepSpeed's rises with the logarithm unless warmup_type is linear")
    total, path = params.get("total_num_steps"), (*home, "total_num_steps")
    if total is not None and max_steps is None:
        found.remark(path, "ignored: the learning rate ends with the run, whose length is train.max_steps or train.num_train_epochs")
    elif total is not None and total != max_steps:
        found.refuse(path, f"{total} contradicts train.max_steps: {max_steps}", "keep one of them: the learning rate ends with the run")
