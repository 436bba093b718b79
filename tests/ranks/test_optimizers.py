"""adamw_8bit, adafactor and muon on real ranks: the same updates however they are split, resumed exactly, and unchanged by what is not finite."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource
from ftcore.spec.sections import OptimizerSection, ParameterGroup, Spec
from ftcore.train.schedule import learning_rate_factor
from tests.ranks.engine_facts import allow_fp16
from tests.ranks.jobs import TrainedRank, train_runs
from tests.ranks.matrix import windows_of
from tests.ranks.pool import RankPool
from tests.ranks.reference import Curve, relative_gap, train_reference
from tests.ranks.specs import make_spec, with_section
from tests.ranks.table_runs import TableCase, TableOutcome, same_bits, table_windows, train_tables
from tests.ranks.test_resume import assert_equal_state, copy_at, without_dropout

Small = tuple[ModelSource, str]
UPDATES = 4
SECTIONS = {kind: OptimizerSection(type=kind, learning_rate=3e-3, weight_decay=0.1, max_grad_norm=1.0) for kind in ("adamw_8bit", "adafactor", "muon")}
STAGES = {"adamw_8bit": (0, 1, 2, 3), "adafactor": (0,), "muon": (0, 1, 2, 3)}
TOLERANCE = {"adamw_8bit": 0.05, "adafactor": 2e-5, "muon": 2e-5}
"""Of the parameters' change in fp32, relative to plain torch in double: rounding, and for adamw_8bit that of its moments."""
GROUPS = (ParameterGroup(pattern="*self_attn*", learning_rate=1e-3, max_grad_norm=0.3), ParameterGroup(pattern="*down_proj*", weight_decay=0.3))


def splits(world_size: int) -> dict[str, Spec]:
    """By name, what is trained on that many ranks: more micro-steps on more of them."""
    specs: dict[str, Spec] = {}
    for kind, section in SECTIONS.items():
        for stage in STAGES[kind]:
            coalesce = stage == 2 and world_size == 2
            specs[f"{kind} {stage}"] = make_spec(stage, optimizer=section, updates=UPDATES, budget=160 // world_size, coalesce=coalesce)
    grouped = dataclasses.replace(SECTIONS["muon"], parameter_groups=GROUPS)
    specs["groups muon"] = make_spec(3 if world_size > 1 else 0, optimizer=grouped, updates=UPDATES)
    for kind in ("adamw_8bit", "muon"):
        offloaded = make_spec(2 if world_size == 2 else 3, optimizer=SECTIONS[kind], updates=UPDATES)
        specs[f"offload {kind}"] = with_section(offloaded, "zero", offload_optimizer="cpu")
    half = with_section(make_spec({1: 3, 2: 1, 4: 2}[world_size], optimizer=SECTIONS["muon"], updates=UPDATES), "model", dtype="float16")
    specs["fp16 muon"] = with_section(half, "train", precision="fp16")
    return specs


def train_everywhere(rank: int, world_size: int, runs: list[tuple[str, Spec]], source: ModelSource, samples: str) -> list[TrainedRank]:
    """`train_runs` where DeepSpeed is told that this machine has fp16."""
    allow_fp16()
    return train_runs(rank, world_size, runs, source, samples)


@pytest.fixture(scope="module")
def references(small: Small) -> dict[str, Curve]:
    """Each optimizer in plain torch, in double."""
    source, path = small
    samples, curves = SampleSet.open(path), {}
    for kind, section in SECTIONS.items():
        spec = make_spec(0, optimizer=section, updates=UPDATES)
        rates = [section.learning_rate * learning_rate_factor(spec.schedule, update, UPDATES) for update in range(UPDATES)]
        curves[kind] = train_reference(source.path, samples, windows_of(samples, spec), rates, section, torch.float64)
    return curves


@pytest.fixture(scope="module")
def split_runs(pool: RankPool, small: Small, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, TrainedRank]]:
    """World size -> name -> what rank 0 brought back."""
    results = {}
    for world_size in (1, 2, 4):
        folder, specs = tmp_path_factory.mktemp(f"splits_{world_size}"), splits(world_size)
        runs = [(str(folder / name.replace(" ", "_")), spec) for name, spec in specs.items()]
        results[world_size] = dict(zip(specs, pool.run(train_everywhere, world_size, runs, *small, logs=folder / "logs")[0], strict=True))
    return results


@pytest.mark.parametrize("kind", SECTIONS)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_no_split_changes_the_update(kind: str, world_size: int, split_runs: dict[int, dict[str, TrainedRank]], references: dict[str, Curve]) -> None:
    expected = references[kind]
    for name, trained in split_runs[world_size].items():
        if name not in (*(f"{kind} {stage}" for stage in STAGES[kind]), f"offload {kind}"):
            continue
        gap = relative_gap(trained.change, expected.change)
        assert gap <= TOLERANCE[kind], (name, gap)
        exact = kind != "adamw_8bit"
        assert trained.losses == pytest.approx(expected.losses, rel=1e-5 if exact else 1e-3), name
        assert trained.norms == pytest.approx(expected.norms, rel=1e-4 if exact else 1e-2), name


def test_norms_of_groups_are_clipped_before_muon(split_runs: dict[int, dict[str, TrainedRank]]) -> None:
    first = split_runs[1]["groups muon"]
    for world_size in (2, 4):
        assert relative_gap(split_runs[world_size]["groups muon"].change, first.change) <= TOLERANCE["muon"]
    assert relative_gap(split_runs[1]["muon 0"].change, first.change) > 0.1


def test_muon_does_not_see_the_loss_scale(split_runs: dict[int, dict[str, TrainedRank]], references: dict[str, Curve]) -> None:
    for trained in (split_runs[world_size]["fp16 muon"] for world_size in split_runs):
        assert trained.losses == pytest.approx(references["muon"].losses, rel=1e-3)
        assert trained.norms == pytest.approx(references["muon"].norms, rel=1e-2)


RESUMED = {
    "adamw_8bit 0": (0, "fp32", "full", (1, 3)),
    "adamw_8bit 1": (1, "bf16", "full", (1, 2)),
    "adamw_8bit 2": (2, "fp32", "full", (4, 3)),
    "adamw_8bit 3": (3, "bf16", "lora", (1, 2)),
    "adafactor 0": (0, "fp32", "full", (4, 0)),
    "adafactor lora": (0, "fp32", "lora", (1, 0)),
    "muon 0": (0, "fp32", "full", (4, 3)),
    "muon 1": (1, "bf16", "full", (1, 3)),
    "muon 2": (2, "fp32", "lora", (4, 3)),
    "muon 3": (3, "fp32", "full", (1, 0)),
}
"""Stage, precision and method on two ranks, and the ranks and stage that another run goes on with."""
SAVED = 2


def resumed_spec(name: str, stage: int) -> Spec:
    _, precision, method, _ = RESUMED[name]
    return make_spec(stage, optimizer=SECTIONS[name.partition(" ")[0]], updates=UPDATES, precision=precision, method=method, save_steps=SAVED)


@pytest.fixture(scope="module")
def resumed(pool: RankPool, small: Small, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[TrainedRank]]:
    """Name -> the unbroken run and the one that went on from its checkpoint, on rank 0."""
    folder = tmp_path_factory.mktemp("resumed")
    specs = {name: resumed_spec(name, stage) for name, (stage, *_) in RESUMED.items()}
    whole = pool.run(train_runs, 2, [(str(folder / name / "whole"), spec) for name, spec in specs.items()], *small, logs=folder / "logs")[0]
    for name in specs:
        copy_at(folder / name / "whole", folder / name / "again", SAVED)
        copy_at(folder / name / "whole", folder / name / "elsewhere", SAVED)
    again = pool.run(train_runs, 2, [(str(folder / name / "again"), spec) for name, spec in specs.items()], *small, logs=folder / "logs")[0]
    found = {name: [one, other] for name, one, other in zip(specs, whole, again, strict=True)}
    for world_size in (1, 4):
        moved = {name: without_dropout(resumed_spec(name, stage)) for name, (*_, (ranks, stage)) in RESUMED.items() if ranks == world_size}
        runs = [(str(folder / name / "elsewhere"), spec) for name, spec in moved.items()]
        for name, trained in zip(moved, pool.run(train_runs, world_size, runs, *small, logs=folder / "logs")[0], strict=True):
            found[name].append(trained)
    return found


@pytest.mark.parametrize("name", RESUMED)
def test_resume_is_bit_equal(name: str, resumed: dict[str, list[TrainedRank]]) -> None:
    """Codes and scales of 8-bit moments, sums of rows and columns, and momentum of matrices too."""
    whole, again, _ = resumed[name]
    assert_equal_state(again, whole)
    assert again.losses == whole.losses
    kind = {"adamw_8bit": "absmax2/", "adafactor": "exp_avg_sq_col/", "muon": "momentum_buffer/"}[name.partition(" ")[0]]
    assert any(key.startswith(kind) for key in whole.final)


@pytest.mark.parametrize("name", [name for name, (_, _, method, _) in RESUMED.items() if method == "full"])
def test_resume_elsewhere(name: str, resumed: dict[str, list[TrainedRank]]) -> None:
    """F12, with the rounding of bf16, and of moments whose blocks lie elsewhere."""
    whole, _, elsewhere = resumed[name]
    rel = 3e-3 if RESUMED[name][1] == "bf16" else 1e-3 if name.startswith("adamw_8bit") else 1e-5
    assert elsewhere.losses == pytest.approx(whole.losses, rel=rel)
    assert relative_gap(elsewhere.change, from_checkpoint(whole, elsewhere)) < 50 * rel


def from_checkpoint(whole: TrainedRank, elsewhere: TrainedRank) -> dict[str, torch.Tensor]:
    """What the unbroken run changed from the checkpoint on that the other went on from."""
    begun = {name: elsewhere.final[f"master/{name}"].double() - change for name, change in elsewhere.change.items()}
    return {name: whole.final[f"master/{name}"].double() - start for name, start in begun.items()}


POISONED = {
    **{f"{kind} {stage}": (kind, stage, "fp32") for kind, stages in STAGES.items() for stage in stages},
    **{f"muon fp16 {stage}": ("muon", stage, "fp16") for stage in (1, 2, 3)},
    "adamw_8bit bf16": ("adamw_8bit", 2, "bf16"),
    **{f"{kind} offload": (kind, 2, "offload") for kind in ("adamw_8bit", "muon")},
}


def poisoned_case(kind: str, stage: int, precision: str, folder: Path) -> TableCase:
    """Four updates of eight samples; one of the 32, in the second update, has a loss that is not a number."""
    section = OptimizerSection(type=kind, learning_rate=0.05, max_grad_norm=0.1)
    spec = make_spec(stage, optimizer=section, updates=4, precision="fp32", budget=4)
    spec = with_section(spec, "schedule", lr_scheduler_type="constant", warmup_steps=None)
    tokens = (3, *(1 + index % 2 for index in range(1, 32)))
    for seed in range(100):
        case = TableCase(spec=with_section(spec, "train", seed=seed, on_nonfinite="skip"), tokens=tokens, x=(0.5, 1.0, -1.0, math.nan), scale_power=None)
        if 0 in table_windows(case, folder)[1]:
            break
    if precision == "offload":
        return dataclasses.replace(case, spec=with_section(case.spec, "zero", offload_optimizer="cpu"))
    if precision == "fp16":
        case = dataclasses.replace(case, scale_power=4)
    return dataclasses.replace(case, spec=with_section(case.spec, "train", precision=precision))


@pytest.fixture(scope="module")
def poisoned(pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, TableOutcome]]:
    """By rank."""
    folder = tmp_path_factory.mktemp("poisoned")
    cases = {name: poisoned_case(*case, folder) for name, case in POISONED.items()}
    return pool.run(train_tables, 2, str(folder / "runs"), cases, logs=folder / "logs")


@pytest.mark.parametrize("name", POISONED)
def test_an_update_that_is_not_finite_changes_nothing(name: str, poisoned: list[dict[str, TableOutcome]]) -> None:
    """C11: neither parameters nor momentum, codes or sums, and the next update goes on."""
    for outcome in (rank[name] for rank in poisoned):
        assert not outcome.error and outcome.steps_taken == [1, 1, 2, 3]
        assert same_bits(outcome.states[2], outcome.states[1])
        assert not same_bits(outcome.states[3], outcome.states[2])
        assert all(math.isfinite(value) for value in outcome.masters()[:3])
