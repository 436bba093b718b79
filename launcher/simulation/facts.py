"""A simulation as JSON-ready values. The keys are described in docs/simulation.md and stay."""

from __future__ import annotations

import dataclasses
from typing import Any

from launcher.simulation.point import Simulation

SIMULATION_SCHEMA = 1


def simulation_facts(simulation: Simulation) -> dict[str, Any]:
    """Everything of a simulation; times in seconds, sizes in bytes."""
    return {"schema": SIMULATION_SCHEMA, **dataclasses.asdict(simulation)}
