"""Gradients between the last backward and the step, in every stage and precision, against plain torch in one process.

The truth is the update in float64 from the same weights. What plain torch in the precision itself is off by says how far real ranks may be:
FACTOR times that, since they sum in another order.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from ftcore.data.prepared import ModelSource
from ftcore.diagnostics.layer_norms import layers_of
from tests.ranks.gradient_jobs import LIMITS, RATE, Outcome, Reference, clip_factor, make_specs, reference, run_updates
from tests.ranks.pool import RankPool

Small = tuple[ModelSource, str]
FACTOR = 4
ROUNDING = 2.0**-23
"""fp32's epsilon: a master after the step is rounded once, and so are the step and the difference that the test takes."""


def gap(one: torch.Tensor, other: torch.Tensor) -> float:
    """||one - other|| / ||other||."""
    return float((one.double() - other.double()).norm() / other.double().norm())


def truths(folder: str) -> dict[str, tuple[float, Reference]]:
    """Kind of run -> tolerance and float64 reference."""
    kinds = {
        "fp32": (torch.float32, None),
        "bf16": (torch.bfloat16, None),
        "fp16": (torch.float16, None),
        "autocast": (torch.float32, torch.bfloat16),
    }
    found = {}
    for kind, (dtype, computed_in) in kinds.items():
        truth, rounded = reference(folder, dtype, computed_in=torch.float64), reference(folder, dtype, computed_in=computed_in)
        found[kind] = (FACTOR * max(gap(rounded.gradients[name], value) for name, value in truth.gradients.items()), truth)
    return found | dict.fromkeys(("coalesced", "offload"), found["fp32"]) | {"kept": found["bf16"]}


def check_gradients(outcome: Outcome, tolerance: float, truth: Reference, name: str) -> None:
    wanted: dict[str, float] = {}
    for parameter, layer in layers_of(truth.norms).items():
        wanted[layer] = math.hypot(wanted.get(layer, 0.0), truth.norms[parameter])
    assert wanted.keys() == {"model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm"}
    assert outcome.layers == pytest.approx(wanted, rel=tolerance), name
    assert outcome.groups == pytest.approx(truth.totals, rel=tolerance), name
    assert outcome.gradients.keys() == truth.gradients.keys(), name
    for parameter, value in truth.gradients.items():
        assert gap(outcome.gradients[parameter], value) <= tolerance, (name, parameter, tolerance)


def check_step(outcome: Outcome, name: str) -> None:
    """The step takes the very gradients that were scaled, up to rounding."""
    clipped = math.hypot(*(norm * clip_factor(norm, limit) for norm, limit in zip(outcome.groups, LIMITS, strict=True)))
    assert (outcome.loss_scale > 1.0) == name.startswith("fp16"), name
    if not name.endswith("stage 0"):
        assert outcome.norm_at_step == pytest.approx(clipped, rel=1e-5), name
    for parameter, change in outcome.change.items():
        off = float((change.double() + RATE * outcome.gradients[parameter].double()).norm())
        assert off <= ROUNDING * float(outcome.masters[parameter].double().norm() + change.double().norm()), (name, parameter)


@pytest.mark.parametrize("world_size", [1, 2])
def test_norms_by_layer_and_clipping_by_group(world_size: int, pool: RankPool, small: Small, tmp_path: Path) -> None:
    folder = small[0].path
    references = truths(folder)
    results = pool.run(run_updates, world_size, str(tmp_path), folder, make_specs(), logs=tmp_path / "logs")
    for name in make_specs():
        tolerance, truth = references[name.partition(" ")[0]]
        assert truth.totals[0] > 2 * LIMITS[0], "the test must clip"
        for result in results:
            check_gradients(result[name], tolerance, truth, name)
            check_step(result[name], name)
        assert set().union(*(result[name].gradient_names for result in results)) == set(truth.norms), name
