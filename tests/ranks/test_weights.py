"""Weights of messages, and updates that hold nothing to learn from: C04, C09, L01, L03."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from ftcore.data.cache import Counts, SampleSet, write_samples
from ftcore.data.prepared import ModelSource
from ftcore.spec.sections import Spec
from tests.ranks.jobs import train_runs
from tests.ranks.matrix import reference_curves
from tests.ranks.pool import RankPool
from tests.ranks.reference import relative_gap, train_model
from tests.ranks.small_model import VOCABULARY
from tests.ranks.specs import make_spec, with_section
from tests.ranks.table_runs import TableCase, TableOutcome, TokenTable, same_bits, table_windows, train_tables, write_table_samples

Small = tuple[ModelSource, str]
WEIGHTED_SPLITS = [(1, 0, "packed", 300), (2, 1, "padded", 60), (2, 2, "packed", 40), (4, 3, "packed", 60)]
"""Ranks, stage, layout, micro_batch_tokens."""


def write_weighted_samples(path: Path) -> SampleSet:
    """Two supervised ranges a sample; their weights go from 1e-3 to 50, and some are 1."""
    random = np.random.default_rng(13)
    ids, spans, weights = [], [], []
    for row in range(29):
        length = int(random.integers(9, 31))
        ids.append(random.integers(3, VOCABULARY, size=length).astype(np.int32))
        spans.append([(0, 3), (5, length)] if row % 5 else [])
        weights.append([float(10.0 ** random.uniform(-3, 1.7)), 1.0 if row % 3 else 0.25][: len(spans[-1])])
    tokens, supervised = sum(map(len, ids)), sum(end - max(start, 1) for pairs in spans for start, end in pairs)
    write_samples(path, ids, spans, list(range(1, 30)), Counts(rows=29, tokens=tokens, supervised_tokens=supervised), weights)
    return SampleSet.open(path)


@pytest.mark.parametrize(("world_size", "stage", "layout", "budget"), WEIGHTED_SPLITS)
def test_a_token_counts_its_weight(world_size: int, stage: int, layout: str, budget: int, pool: RankPool, small: Small, tmp_path: Path) -> None:
    """Loss and gradient are the weighted sum over the sum of weights, also in the short last window of an epoch."""
    samples = write_weighted_samples(tmp_path / "samples.arrow")
    spec = with_section(make_spec(stage, updates=8, budget=budget), "batch", layout=layout)
    spec = with_section(spec, "schedule", lr_scheduler_type="constant", warmup_steps=None)
    own, double = reference_curves(small[0], samples, spec)
    arguments = ([(str(tmp_path / "run"), spec)], small[0], str(tmp_path / "samples.arrow"))
    [trained] = pool.run(train_runs, world_size, *arguments, logs=tmp_path / "logs")[0]
    assert trained.losses == pytest.approx(double.losses, rel=1e-5)
    assert trained.norms == pytest.approx(double.norms, rel=1e-4)
    assert relative_gap(trained.change, double.change) <= 10 * relative_gap(own.change, double.change)


def table_spec(stage: int, *, batch: int, budget: int, updates: int) -> Spec:
    spec = with_section(make_spec(stage, updates=updates, budget=budget), "batch", global_batch_size=batch)
    spec = with_section(spec, "optimizer", learning_rate=0.05, weight_decay=0.0)
    return with_section(spec, "schedule", lr_scheduler_type="linear", warmup_steps=None)


def expected_table(case: TableCase, outcome: TableOutcome, folder: Path) -> list[float]:
    """The table after the case's updates by plain torch, at the learning rates that were logged."""
    model = TokenTable([1.0] * len(case.x))
    model.x.data = torch.tensor(case.x).unsqueeze(1)
    rates = [line["learning_rate"] for line in outcome.lines]
    change = train_model(model, write_table_samples(folder / "again.arrow", case), table_windows(case, folder), rates, case.spec.optimizer).change["x"]
    return (torch.tensor(case.x) + change.flatten()).tolist()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_an_update_without_supervised_tokens_changes_nothing(stage: int, pool: RankPool, tmp_path: Path) -> None:
    """C09: parameters, moments and schedule stay, it is logged, and the cursor goes on; empty micro-steps beside full ones add nothing."""
    spec = table_spec(stage, batch=4, budget=4, updates=3)
    for seed in range(500):
        case = TableCase(spec=with_section(spec, "train", seed=seed), tokens=(1, 2) * 6, x=(0.5, 1.0, -1.0), unsupervised=(0, 1, 2, 3, 4))
        empty = [set(window) <= set(case.unsupervised) for window in table_windows(case, tmp_path)]
        if empty == [False, True, False]:
            break
    outcomes = [rank["run"] for rank in pool.run(train_tables, 2, str(tmp_path / "runs"), {"run": case}, logs=tmp_path / "logs")]
    for outcome in outcomes:
        assert not outcome.error
        assert same_bits(outcome.states[2], outcome.states[1]) and not same_bits(outcome.states[3], outcome.states[2])
        assert outcome.steps_taken == [1, 1, 2]
        assert outcome.next_update == [1, 2, 3] and outcome.samples_seen == [4, 8, 12]
    first = outcomes[0]
    assert [event["update"] for event in first.named("empty_update")] == [2]
    assert [line["loss"] is None for line in first.lines] == [False, True, False]
    assert [line["supervised_tokens"] for line in first.lines][1] == 0
    assert [line["learning_rate"] for line in first.lines] == pytest.approx([0.05, 0.05 * 2 / 3, 0.05 * 2 / 3])
    windows = table_windows(case, tmp_path)
    assert sum(map(len, windows)) == 12
    without = [window for window, nothing in zip(windows, empty, strict=True) if not nothing]
    model = TokenTable([1.0] * 3)
    model.x.data = torch.tensor(case.x).unsqueeze(1)
    change = train_model(model, write_table_samples(tmp_path / "again.arrow", case), without, [0.05, 0.05 * 2 / 3], spec.optimizer).change["x"]
    assert first.masters() == pytest.approx((torch.tensor(case.x) + change.flatten()).tolist(), rel=1e-5)


def epochs_case(rows: int, batch: int, epochs: float, stage: int = 2) -> TableCase:
    spec = with_section(table_spec(stage, batch=batch, budget=4, updates=1), "train", max_steps=None, num_train_epochs=epochs)
    return TableCase(spec=spec, tokens=tuple(1 + row % 2 for row in range(rows)), x=(0.5, 1.0, -1.0))


COUNTED = {
    "C04": (epochs_case(10, 4, 1.0), 3, 10),
    "L01": (epochs_case(9, 4, 3.0), 9, 27),
    "L03": (epochs_case(8, 4, 24.0), 48, 192),
}
"""Case -> run, updates, samples seen. With micro-batches of 2 and accumulation 2, C04 has 5 micro-batches and L01 has 9 rows in 3 epochs; L03 has 24 epochs."""


def test_every_sample_of_every_epoch_is_trained_on(pool: RankPool, tmp_path: Path) -> None:
    """The short last window of an epoch is an update like any other: applied at once, nothing left for the next epoch."""
    cases = {name: case for name, (case, _, _) in COUNTED.items()}
    for rank, outcomes in enumerate(pool.run(train_tables, 2, str(tmp_path / "runs"), cases, logs=tmp_path / "logs")):
        for name, (case, updates, seen) in COUNTED.items():
            outcome = outcomes[name]
            assert outcome.steps_taken == list(range(1, updates + 1)), name
            assert outcome.samples_seen[-1] == seen, name
            if rank == 0:
                assert len(outcome.lines) == updates
                assert outcome.masters() == pytest.approx(expected_table(case, outcome, tmp_path), rel=1e-4), name


def test_the_logged_loss_does_not_depend_on_the_number_of_micro_steps(pool: RankPool, tmp_path: Path) -> None:
    """L07: accumulation 1 and 8, on one rank and on two."""
    base = epochs_case(16, 16, 2.0)
    cases = {str(budget): dataclasses.replace(base, spec=with_section(base.spec, "batch", micro_batch_tokens=budget)) for budget in (32, 4, 2)}
    losses = []
    for world_size in (1, 2):
        outcomes = pool.run(train_tables, world_size, str(tmp_path / f"runs_{world_size}"), cases, logs=tmp_path / "logs")[0]
        losses += [[line["loss"] for line in outcome.lines] for outcome in outcomes.values()]
        assert [outcome.lines[0]["micro_steps"] for outcome in outcomes.values()] == [1, 8 // world_size, 16 // world_size]
    assert all(each == pytest.approx(losses[0], rel=1e-6) for each in losses)
