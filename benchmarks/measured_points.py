"""Our own measured points against the simulator: each point of a folder of `ftlaunch scale` is foretold from the one with the fewest ranks of its stage."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ftcore.spec.resolved import load_resolved
from ftcore.spec.run_dir import RunDir
from ftcore.spec.scale_result import ScaleDir, ScalePoint, read_scale
from launcher.memory.accelerators import find_accelerator
from launcher.memory.config_file import find_config
from launcher.memory.cost import run_data
from launcher.memory.shape import read_shape
from launcher.simulation.anchor import Anchor, read_anchors
from launcher.simulation.points import point_of
from launcher.simulation.setting import Setting


def compared(folder: Path) -> list[str]:
    """A line for each measured point but the anchors: seconds measured and foretold. For points on this machine's cores."""
    result, anchors = read_scale(folder), read_anchors(folder)
    lines = []
    for stage in sorted({anchor.stage for anchor in anchors}):
        first = min((anchor for anchor in anchors if anchor.stage == stage), key=lambda anchor: anchor.ranks)
        others = [point for point in result.measured if point.stage == stage and point.ranks > first.ranks and not point.oversubscribed]
        lines += [_line(folder, point, first) for point in others]
    return lines


def _line(folder: Path, point: ScalePoint, anchor: Anchor) -> str:
    resolved = load_resolved(RunDir(ScaleDir(folder).point(point.name)).resolved)
    # A point's spec is cut to its updates, and may have no more samples than those take.
    spec = dataclasses.replace(resolved.spec, hardware=dataclasses.replace(resolved.spec.hardware, price_per_hour=None))
    resolved = dataclasses.replace(resolved, spec=spec)
    setting = Setting(
        resolved=resolved,
        shape=read_shape(find_config(spec.model)),
        accelerator=find_accelerator("cpu"),
        data=run_data(resolved),
        gpus_per_node=max(point.ranks, anchor.ranks),
        cores_per_rank=float(point.threads or 1),
        anchors=(anchor,),
    )
    foretold = point_of(setting, point.ranks, point.stage)
    # Windows hold other samples than an average update: speeds are set against each other, not seconds.
    measured = float(point.tokens_per_s or 0.0)
    error = foretold.tokens_per_s / measured - 1
    low, high = foretold.tokens / foretold.high_s, foretold.tokens / foretold.low_s
    inside = "inside" if low <= measured <= high else "outside"
    head = f"{result_name(resolved.spec.model.model_name_or_path)} stage {point.stage}, {anchor.ranks} -> {point.ranks} ranks"
    return f"{head}: measured {measured:,.0f} tokens/s, foretold {foretold.tokens_per_s:,.0f} ({error:+.1%}), {inside} the band {low:,.0f} to {high:,.0f}"


def result_name(model: str) -> str:
    """The last part of a model's name."""
    return model.rsplit("/", 1)[-1]
