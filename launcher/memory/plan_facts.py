"""A plan as JSON-ready values. The keys are described in docs/memory.md and stay."""

from __future__ import annotations

import dataclasses
from typing import Any

from launcher.memory.cost_text import forecast_facts
from launcher.memory.notes import plan_notes
from launcher.memory.plan import Plan

PLAN_VERSION = 1


def plan_facts(plan: Plan) -> dict[str, Any]:
    """Everything of the plan; sizes in bytes."""
    shape, ledger, capacity = plan.shape, plan.ledger, plan.capacity
    return {
        "version": PLAN_VERSION,
        "spec": plan.origin,
        "model": {
            "name": plan.resolved.spec.model.model_name_or_path,
            "family": shape.family,
            "parameters": shape.parameters,
            "layers": shape.layers,
            "hidden_size": shape.hidden,
            "vocabulary": shape.vocab,
            "experts": shape.experts,
        },
        "parameters": ledger.parameters,
        "trained": ledger.trained,
        "ranks": plan.resolved.world_size,
        "hosts": {host.name: host.slots for host in plan.resolved.hosts},
        "combination": {"verdict": plan.verdict.word, "warnings": list(plan.verdict.warnings)},
        "memory": memory_facts(plan),
        "capacity": {
            "accelerator": capacity.accelerator.name if capacity.accelerator is not None else None,
            "origin": capacity.device_origin,
            "device_bytes": capacity.device_bytes,
            "host_bytes": capacity.host_bytes,
            "disk_bytes": capacity.disk_bytes,
            "margin": plan.resolved.spec.hardware.margin,
        },
        "fits": plan.fits,
        "shortages": [dataclasses.asdict(each) for each in plan.shortages],
        "forecast": forecast_facts(plan.forecast) if plan.forecast is not None else None,
        "no_forecast": plan.no_forecast,
        "notes": list(plan_notes(plan)),
    }


def memory_facts(plan: Plan) -> dict[str, Any]:
    """The ledger: its items and what they come to."""
    ledger = plan.ledger
    return {
        "items": [dataclasses.asdict(item) for item in ledger.items],
        "device_bytes_by_phase": ledger.phase_bytes,
        "device_peak_bytes": ledger.device_peak_bytes,
        "peak_phase": ledger.peak_phase,
        "host_bytes": ledger.host_bytes,
        "nvme_bytes": ledger.nvme_bytes,
        "disk_bytes": ledger.disk_bytes,
    }
