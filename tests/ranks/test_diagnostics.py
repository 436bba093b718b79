"""Gradients between the last backward and the step, in every stage and precision, against plain torch in one process."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from ftcore.data.prepared import ModelSource
from ftcore.diagnostics.layer_norms import layers_of
from tests.ranks.gradient_jobs import LIMITS, clip_factor, make_specs, reference, run_updates
from tests.ranks.pool import RankPool

Small = tuple[ModelSource, str]


@pytest.mark.parametrize("world_size", [1, 2])
def test_norms_by_layer_and_clipping_by_group(world_size: int, pool: RankPool, small: Small, tmp_path: Path) -> None:
    folder = small[0].path
    exact, rounded, half = (reference(folder, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16))
    references = {"bf16": (3e-2, rounded), "kept": (3e-2, rounded), "autocast": (3e-2, rounded), "fp16": (3e-3, half)}
    references |= dict.fromkeys(("fp32", "coalesced", "offload"), (1e-5, exact))
    results = pool.run(run_updates, world_size, str(tmp_path), folder, make_specs(), logs=tmp_path / "logs")
    for name in make_specs():
        tolerance, (norms, totals, change) = references[name.partition(" ")[0]]
        wanted: dict[str, float] = {}
        for parameter, layer in layers_of(norms).items():
            wanted[layer] = math.hypot(wanted.get(layer, 0.0), norms[parameter])
        assert wanted.keys() == {"model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm"}
        assert totals[0] > 2 * LIMITS[0], "the test must clip"
        for result in results:
            outcome = result[name]
            assert outcome.layers == pytest.approx(wanted, rel=tolerance), name
            assert outcome.groups == pytest.approx(totals, rel=tolerance), name
            clipped = math.hypot(*(norm * clip_factor(norm, limit) for norm, limit in zip(outcome.groups, LIMITS, strict=True)))
            assert (outcome.loss_scale > 1.0) == name.startswith("fp16"), name
            if not name.endswith("stage 0"):
                assert outcome.norm_at_step == pytest.approx(clipped, rel=1e-5), name
            for parameter, value in change.items():
                gap = float((outcome.change[parameter] - value).norm() / value.norm())
                # A change is the difference of two values a hundred times its size, each rounded.
                assert gap < 10 * tolerance, (name, parameter, gap)
        assert set().union(*(result[name].gradient_names for result in results)) == set(norms), name
