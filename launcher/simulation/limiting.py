"""What keeps a point from being faster, in words."""

from __future__ import annotations

from launcher.memory.accelerators import Accelerator

BARELY = 0.05
"""A phase below this share of an update is no reason for anything."""


def limiting(phases: dict[str, float], *, accelerator: Accelerator, nodes: int, idle_ranks: float, ranks: int) -> str:
    """The largest phase beside computing, and whether it is larger than that; computing itself where none of them matters."""
    total = sum(phases.values())
    others = {name: seconds for name, seconds in phases.items() if name != "compute"}
    name = max(others, key=lambda each: others[each])
    share = others[name] / total if total else 0.0
    if share < BARELY:
        return f"computing on {accelerator.name}: all else is {sum(others.values()) / total:.0%} of an update" if total else "nothing to do"
    words = {
        "launch": "launching kernels: micro-steps are too small for the accelerator",
        "communication": f"collectives {'between hosts' if nodes > 1 else 'inside a host'}",
        "idle": f"waiting for the rank with the dearest samples{_without(idle_ranks, ranks)}",
        "offload": "what is offloaded to the host",
    }
    most = "" if others[name] > phases.get("compute", 0.0) else "beside computing: "
    return f"{most}{words[name]}, {share:.0%} of an update"


def _without(idle_ranks: float, ranks: int) -> str:
    return f" ({idle_ranks:,.0f} of {ranks:,} ranks have none)" if idle_ranks >= 0.5 else ""
