"""RUN/memory.txt and memory.json: the plan of memory, time and cost that a run was started with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from launcher.memory.capacity import capacity_of
from launcher.memory.launch_fit import shape_at_hand
from launcher.memory.plan import make_plan
from launcher.memory.plan_facts import plan_facts
from launcher.memory.table import render_plan


def memory_files(run_dir: RunDir, resolved: ResolvedSpec, facts: Mapping[str, Mapping[str, Any]]) -> dict[Path, str]:
    """Path -> text, with `facts` as preflight heard them of the hosts; nothing for a model that can't be planned for without asking the hub."""
    try:
        shape = shape_at_hand(resolved.spec.model)
        capacity = capacity_of(resolved, folder=run_dir.path, facts=facts)
        plan = make_plan(resolved, str(run_dir.resolved), shape, capacity)
        return {run_dir.memory_txt: render_plan(plan), run_dir.memory_json: json.dumps(plan_facts(plan), indent=2, ensure_ascii=False) + "\n"}
    except Exception:  # noqa: BLE001  an odd model must not keep a run from starting; `ftlaunch plan` tells what is wrong with it
        return {}
