"""Combinations that together hold every cell which the table of launcher/combinations/verdict.py says works, and the spec of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ftcore.spec.sections import AdapterSection, OptimizerSection, Spec
from launcher.combinations.combination import AXES, OWN, Combination, Value
from launcher.combinations.table import PLANES, WORKS, cells, completions
from launcher.combinations.verdict import judge
from launcher.rules.precision import DTYPES
from tests.ranks.specs import make_spec, with_section

LEARNING_RATES = {"adamw": 1e-2, "adamw_8bit": 1e-2, "sgd": 0.3, "muon": 2e-2, "adafactor": 1e-2}
Held = frozenset[tuple[str, Value]]


def working_cells() -> list[Held]:
    """Every cell that works, the largest tables' first."""
    found = dict.fromkeys(held(cell.values) for plane in sorted(PLANES, key=len, reverse=True) for cell in cells(plane) if cell.word == WORKS)
    return list(found)


def held(values: dict[str, Value]) -> Held:
    return frozenset(values.items())


def cover(wanted: Iterable[Held]) -> list[Combination]:
    """Few combinations that work and hold all of `wanted`; always the same ones. Raises ValueError for one that no combination holds."""
    left = dict.fromkeys(wanted)
    chosen = []
    while left:
        first = next(iter(left))
        values = _completed(dict(first), left)
        chosen.append(Combination(**values))  # type: ignore[arg-type]
        whole = held(values)
        if not first <= whole:
            raise ValueError(f"no combination that works holds {sorted(first)}")
        left = {cell: None for cell in left if not cell <= whole}
    return chosen


def with_companions(chosen: list[Combination]) -> list[Combination]:
    """`chosen`, and the plain combination of those kinds of trained parameters that only one of them has: each then has another to agree with."""
    counted = Counter(kind_of(each) for each in chosen)
    return [*chosen, *(Combination(method=method, adapters=adapters, base=base) for (method, adapters, base), count in counted.items() if count == 1)]


def kind_of(combination: Combination) -> tuple[str, str, str]:
    """What decides the loss and the gradient of a first update."""
    return combination.method, combination.adapters, combination.base


def _completed(values: dict[str, Value], left: dict[Held, None]) -> dict[str, Value]:
    """`values` of some axes, with values for the others that hold as many of `left` as a choice axis by axis finds."""
    for axis in AXES:
        if axis.name not in values:
            options = [values | {axis.name: value} for value in axis.values if _may_work(values | {axis.name: value})]
            values = max(options, key=lambda option: sum(1 for cell in left if (axis.name, option[axis.name]) in cell and _agrees(cell, option)))
    return values


def _agrees(cell: Held, values: dict[str, Value]) -> bool:
    return all(values.get(axis, value) == value for axis, value in cell)


def _may_work(values: dict[str, Value]) -> bool:
    """Whether some combination that works has these values."""
    return any(judge(Combination(**each)).word == WORKS for each in completions(values))  # type: ignore[arg-type]


def spec_of(combination: Combination) -> Spec:
    """Two updates of the small model, saved after each; nothing stays whole on a rank at stage 3 that larger models share."""
    made = combination
    kind = "full" if made.method == "full" else "lora" if made.base == "whole" else "qlora"
    optimizer = OptimizerSection(type=made.optimizer, learning_rate=LEARNING_RATES[made.optimizer], weight_decay=0.1, max_grad_norm=1.0)
    spec = make_spec(made.stage, optimizer=optimizer, budget=40, updates=2, method=kind, save_steps=1, coalesce=made.coalesces)
    method: dict[str, object] = {"lora_dropout": 0.0, "use_rslora": made.method == "rslora", "use_dora": made.method == "dora"}
    if made.adapters == "several":
        method["adapters"] = {"narrow": AdapterSection(r=2), "wide": AdapterSection(r=4)}
    if made.base != "whole":
        method |= {"bits": 8} if made.base == "int8" else {"bits": 4, "quant_type": made.base, "storage_dtype": made.storage}
    if made.compute != OWN:
        method["compute_dtype"] = made.compute
    overrides: dict[str, object] = {"fp16": {"initial_scale_power": 8}} if made.precision == "fp16" else {}
    if made.stage == 3:
        overrides["zero_optimization"] = {"stage3_param_persistence_threshold": 0}
    spec = with_section(spec, "method", **method)
    spec = with_section(spec, "schedule", lr_scheduler_type="constant", warmup_steps=None)
    spec = with_section(spec, "model", dtype=DTYPES[made.precision])
    spec = with_section(spec, "train", precision=made.precision, gradient_checkpointing="full" if made.recomputes else "none")
    spec = with_section(spec, "batch", layout=made.layout)
    return with_section(spec, "zero", offload_optimizer=made.offload_optimizer, offload_param=made.offload_param, overrides=overrides)


def name_of(combination: Combination) -> str:
    """The values that are not the plainest ones."""
    plain = Combination().values()
    parts = [value if isinstance(value, str) else f"{axis}{value:d}" for axis, value in combination.values().items() if value != plain[axis]]
    return "-".join(parts) or "plain"
