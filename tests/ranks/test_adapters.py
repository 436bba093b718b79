"""Several adapters on one base: each trains as if it were alone, also in an engine that sees two backward passes a micro-step."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from ftcore.data.prepared import ModelSource
from ftcore.model.build import attach_method
from ftcore.model.groups import parameter_groups
from ftcore.model.load import load_base
from ftcore.spec.sections import AdapterSection, OptimizerSection, ParameterGroup, Spec
from tests.ranks.jobs import train_runs
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]
ADAPTERS = {
    "narrow": AdapterSection(r=2, lora_alpha=16, learning_rate=1e-2),
    "wide": AdapterSection(r=4, lora_alpha=8, learning_rate=3e-3),
}
CLIPPED = OptimizerSection(learning_rate=3e-3, weight_decay=0.1, max_grad_norm=0.5)
"""Every update's norm is over the limit, so that clipping over both adapters would show."""


def make(stage: int, names: tuple[str, ...], *, coalesce: bool = False, precision: str = "fp32", kind: str = "adamw") -> Spec:
    spec = make_spec(stage, optimizer=dataclasses.replace(CLIPPED, type=kind), method="lora", updates=5, coalesce=coalesce, precision=precision, budget=40)
    spec = with_section(spec, "method", lora_dropout=0.0, adapters={name: ADAPTERS[name] for name in names})
    return with_section(spec, "zero", overrides={"zero_optimization": {"stage3_param_persistence_threshold": 0}}) if stage == 3 else spec


@pytest.mark.parametrize(
    ("stage", "coalesce", "precision", "kind"),
    [
        (0, False, "fp32", "adamw"),
        (1, False, "bf16", "adamw"),
        (2, False, "fp32", "adamw"),
        (2, True, "fp32", "adamw"),
        (3, False, "fp32", "adamw"),
        (3, True, "fp32", "adamw"),
        (3, False, "fp32", "adamw_8bit"),
        (2, False, "fp32", "muon"),
    ],
)
def test_an_adapter_beside_another_trains_as_if_alone(
    stage: int, coalesce: bool, precision: str, kind: str, pool: RankPool, small: Small, tmp_path: Path
) -> None:
    """Bit for bit: nothing that belongs to one reaches the other's gradients, moments or norm."""
    together = tuple(ADAPTERS)
    choices = (together, *((name,) for name in together))
    runs = [(str(tmp_path / "-".join(names)), make(stage, names, coalesce=coalesce, precision=precision, kind=kind)) for names in choices]
    both, *alone = pool.run(train_runs, 2, runs, *small, logs=tmp_path / "logs")[0]
    assert both.micro_steps[0] > 1
    assert len(both.final) == sum(len(one.final) for one in alone)
    for one in alone:
        assert not [name for name, value in one.final.items() if not torch.equal(both.final[name], value)]
        assert all(value.abs().max() > 0 for value in one.change.values())


def test_one_named_adapter_has_its_own_learning_rate(small: Small) -> None:
    spec = make(0, ("narrow",))
    model = attach_method(load_base(spec.model, small[0]), spec.method, spec.train)
    assert {group["lr_scale"] for group in parameter_groups(model, spec)} == {1e-2 / 3e-3}


def test_a_learning_rate_of_0_keeps_a_group_as_it_is(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """Also its decay: torch's AdamW decays by the learning rate."""
    still = OptimizerSection(learning_rate=3e-3, weight_decay=0.1, parameter_groups=(ParameterGroup(pattern="*.lora_A.*", learning_rate=0.0),))
    [trained] = pool.run(train_runs, 2, [(str(tmp_path / "run"), make_spec(2, optimizer=still, method="lora", updates=3))], *small, logs=tmp_path / "logs")[0]
    moved = {name for name, change in trained.change.items() if change.abs().max() > 0}
    assert moved == {name for name in trained.change if ".lora_B." in name}
