"""Plans as JSON-ready values. The keys are described in docs/cost.md and stay."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from launcher.costs.copy_line import Asked, copy_line
from launcher.costs.planner import NO, Plan
from launcher.costs.planning import Planning

COST_SCHEMA = 1


def planning_facts(planning: Planning, asked: Asked) -> dict[str, Any]:
    """Every plan, best first; times in seconds. What never ends, or has no price, is null."""
    terms = planning.terms
    facts: dict[str, Any] = finite(
        {
            "schema": COST_SCHEMA,
            "kind": "plans",
            "spec": planning.origin,
            "model": planning.model,
            "accelerator": planning.accelerator,
            "gpus_per_node": planning.gpus_per_node,
            "deadline_s": terms.deadline_s,
            "deadline_met": None if terms.deadline_s is None else planning.best.meets != NO,
            "prices": {each.name: getattr(terms.prices, each.name) for each in dataclasses.fields(terms.prices) if each.name != "missing"},
            "notice": terms.has_notice,
            "elastic": terms.elastic,
            "wait_s": terms.wait_s,
            "overheads": {str(hosts): dataclasses.asdict(each) for hosts, each in planning.overheads.items()},
            "plans": [plan_facts(plan, asked) for plan in planning.plans],
            "unfit": [dataclasses.asdict(each) for each in planning.unfit],
            "missing": list(terms.prices.missing),
            "notes": list(planning.notes),
        }
    )
    return facts


def plan_facts(plan: Plan, asked: Asked) -> dict[str, Any]:
    """One plan, the way it runs on the same level."""
    facts = dataclasses.asdict(plan)
    return {**facts.pop("candidate"), **facts, "command": copy_line(plan, asked)[0]}


def finite(value: Any) -> Any:
    """The value with null for every number that JSON has none for."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
