"""The rule for a loss or gradient that is not finite, through the real loop: who is named, and that nothing is changed (C11)."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from ftcore.engine_fields import MASTER
from ftcore.spec.sections import OptimizerSection
from tests.ranks.pool import RankPool
from tests.ranks.reference import train_model
from tests.ranks.specs import make_spec, with_section
from tests.ranks.table_runs import TableCase, TableOutcome, TokenTable, same_bits, table_windows, train_tables, write_table_samples

RANKS, UPDATES, POISONED_UPDATE, POISON = 2, 4, 1, 3
TOKENS = (POISON, *(1 + index % 2 for index in range(1, 32)))
"""Sample 0 alone holds the poisoned token."""
ADAMW = OptimizerSection(type="adamw", learning_rate=0.05, max_grad_norm=0.1)
SPLITS = [("fp32", stage) for stage in (0, 1, 2, 3)] + [("bf16", stage) for stage in (1, 2, 3)]
KINDS = {"nan": math.nan, "inf": -math.inf}
"""The table's value of the poisoned token: the loss is NaN; or it is infinite, with a gradient of -1."""


def case_of(stage: int, precision: str, poison: float, *, rule: str, tokens: tuple[int, ...] = TOKENS, most: int = 3) -> TableCase:
    """Four updates of eight samples, dealt as two micro-steps of two samples to each of two ranks, at a falling learning rate."""
    spec = with_section(make_spec(stage, optimizer=ADAMW, updates=UPDATES, precision=precision, budget=4), "batch", global_batch_size=8)
    spec = with_section(spec, "schedule", lr_scheduler_type="linear", warmup_steps=None)
    spec = with_section(spec, "train", on_nonfinite=rule, max_nonfinite_updates=most)
    return TableCase(spec=spec, tokens=tokens, x=(0.5, 1.0, -1.0, poison))


def with_the_poison_in_its_update(case: TableCase, folder: Path) -> TableCase:
    """The case with the first seed that puts sample 0 into update POISONED_UPDATE."""
    for seed in range(100):
        seeded = dataclasses.replace(case, spec=with_section(case.spec, "train", seed=seed))
        if 0 in table_windows(seeded, folder)[POISONED_UPDATE]:
            return seeded
    raise AssertionError("no such seed")


@pytest.fixture(scope="module")
def outcomes(pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, TableOutcome]]:
    """By rank: every precision, stage, kind and rule."""
    folder = tmp_path_factory.mktemp("nonfinite")
    return pool.run(train_tables, RANKS, str(folder / "runs"), all_cases(folder), logs=folder / "logs")


def all_cases(folder: Path) -> dict[str, TableCase]:
    seed = with_the_poison_in_its_update(case_of(0, "fp32", 0.0, rule="stop"), folder).spec.train.seed
    cases = {}
    for precision, stage in SPLITS:
        for kind, poison in KINDS.items():
            for rule in ("stop", "skip"):
                case = case_of(stage, precision, poison, rule=rule)
                cases[f"{precision} {stage} {kind} {rule}"] = dataclasses.replace(case, spec=with_section(case.spec, "train", seed=seed))
    return cases


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("precision", "stage"), SPLITS)
def test_stop_names_the_micro_step_and_leaves_everything(precision: str, stage: int, kind: str, outcomes: list[dict[str, TableOutcome]]) -> None:
    first = outcomes[0][f"{precision} {stage} {kind} stop"]
    for outcome in (rank[f"{precision} {stage} {kind} stop"] for rank in outcomes):
        assert outcome.error.startswith(f"loss: the loss is {kind}; the step was not taken and no parameter was changed")
        assert len(outcome.states) == POISONED_UPDATE + 2
        assert same_bits(outcome.states[-1], outcome.states[-2])
    [event] = first.named("failed_update")
    assert event["update"] == POISONED_UPDATE + 1 and event["reason"] == f"the loss is {kind}"
    [culprit] = event["micro_steps"]
    assert 0 in culprit["samples"] and len(culprit["samples"]) == 2
    assert culprit["rank"] in (0, 1) and culprit["micro_step"] in (0, 1) and culprit["loss"] == kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("precision", "stage"), SPLITS)
def test_skip_leaves_everything_and_goes_on(precision: str, stage: int, kind: str, outcomes: list[dict[str, TableOutcome]], tmp_path: Path) -> None:
    name = f"{precision} {stage} {kind} skip"
    for outcome in (rank[name] for rank in outcomes):
        assert not outcome.error
        assert same_bits(outcome.states[POISONED_UPDATE + 1], outcome.states[POISONED_UPDATE])
        assert not same_bits(outcome.states[POISONED_UPDATE + 2], outcome.states[POISONED_UPDATE + 1])
        assert outcome.steps_taken == [1, 1, 2, 3]
        assert outcome.samples_seen == [8, 16, 24, 32]
        assert same_bits(outcome.states[-1], outcomes[0][name].states[-1])
    lines = outcomes[0][name].lines
    assert [line["loss"] if isinstance(line["loss"], str) else "" for line in lines] == ["", kind, "", ""], "C11: it is visible"
    assert [line["stepped"] for line in lines] == [True, False, True, True]
    assert [line["learning_rate"] for line in lines] == pytest.approx([0.05, 0.0375, 0.0375, 0.025]), "the schedule counts steps"
    case = all_cases(tmp_path)[name]
    expected = without_the_poisoned_update(case, tmp_path)
    found = outcomes[0][name].states[-1][f"{MASTER}/x"][: len(expected)]
    assert found.tolist() == pytest.approx(expected, abs=1e-5 if precision == "fp32" else 2e-2)


def without_the_poisoned_update(case: TableCase, folder: Path) -> list[float]:
    """The table after the other updates by plain torch, at the learning rates of the steps."""
    windows = [window for update, window in enumerate(table_windows(case, folder)) if update != POISONED_UPDATE]
    model = TokenTable([1.0] * POISON)
    model.x.data = torch.tensor(case.x[:POISON]).unsqueeze(1)
    before = model.x.detach().clone()
    rates = [0.05, 0.0375, 0.025]
    change = train_model(model, write_table_samples(folder / "again.arrow", case), windows, rates, ADAMW).change["x"]
    return (before + change).flatten().tolist()


@pytest.mark.parametrize("stage", [0, 2])
def test_too_many_in_a_row_stop_the_run(stage: int, pool: RankPool, tmp_path: Path) -> None:
    case = case_of(stage, "fp32", math.nan, rule="skip", tokens=(POISON,) * 32, most=2)
    for outcome in (rank["all"] for rank in pool.run(train_tables, RANKS, str(tmp_path / "runs"), {"all": case}, logs=tmp_path / "logs")):
        assert "the loss is nan in 3 updates in a row; the step was not taken" in outcome.error
        assert outcome.steps_taken == [0, 0]
        assert len(outcome.states) == 4 and all(same_bits(state, outcome.states[0]) for state in outcome.states)


def test_a_step_in_between_starts_the_count_anew(pool: RankPool, tmp_path: Path) -> None:
    """Two poisoned updates with a good one between them are no two in a row."""
    tokens = tuple(POISON if index in (0, 1) else 1 for index in range(32))
    case = case_of(1, "fp32", math.nan, rule="skip", tokens=tokens, most=1)
    for seed in range(200):
        case = dataclasses.replace(case, spec=with_section(case.spec, "train", seed=seed))
        poisoned = [bool({0, 1} & set(window)) for window in table_windows(case, tmp_path)]
        if poisoned == [True, False, True, False]:
            break
    for outcome in (rank["apart"] for rank in pool.run(train_tables, RANKS, str(tmp_path / "runs"), {"apart": case}, logs=tmp_path / "logs")):
        assert not outcome.error
        assert outcome.steps_taken == [0, 1, 1, 2]
