"""Specs that say little beside a DeepSpeed JSON: the engine starts with what they come to, and trains."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from ftcore.data.prepared import ModelSource
from ftcore.spec.sections import Spec
from tests.ranks.jobs import train_runs
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section
from tests.unit.test_ds_import import CASES, resolve

NAMES = ("trainer_stage2_auto", "trainer_stage3_auto")
"""Stage 2 with the optimizer's state offloaded, stage 3 with both, all else "auto"."""


def from_json(name: str, tmp_path: Path) -> Spec:
    """The small model's spec of two updates with the sections that the JSON speaks of."""
    given = resolve(tmp_path, CASES / f"{name}.json", train={"precision": "fp32"}, optimizer={"learning_rate": 3e-3}).resolved.spec
    spec = replace(make_spec(given.zero.stage, updates=2), zero=given.zero, optimizer=given.optimizer)
    return with_section(spec, "schedule", lr_scheduler_type=given.schedule.lr_scheduler_type, warmup_steps=None)


def test_the_engine_trains_with_what_a_json_says(pool: RankPool, small: tuple[ModelSource, str], tmp_path: Path) -> None:
    """The first update's loss is that of a plain spec in both; so is the second one's where the schedule is the same, which decays in the other one."""
    specs = {name: from_json(name, tmp_path) for name in NAMES}
    assert [(spec.zero.stage, spec.zero.offload_optimizer, spec.zero.offload_param) for spec in specs.values()] == [(2, "cpu", "none"), (3, "cpu", "cpu")]
    plain = with_section(make_spec(2, updates=2), "schedule", lr_scheduler_type="constant_with_warmup", warmup_steps=None)
    specs["plain"] = replace(plain, optimizer=specs[NAMES[0]].optimizer)
    runs = [(str(tmp_path / name), spec) for name, spec in specs.items()]
    trained = dict(zip(specs, pool.run(train_runs, 2, runs, *small, logs=tmp_path / "logs")[0], strict=True))
    for name in NAMES:
        losses = trained[name].losses
        assert len(losses) == 2 and all(math.isfinite(loss) for loss in losses)
        assert abs(losses[0] - trained["plain"].losses[0]) < 1e-5 * losses[0]
    assert abs(trained[NAMES[0]].losses[1] - trained["plain"].losses[1]) < 1e-5 * trained["plain"].losses[1]
