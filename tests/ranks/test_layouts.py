"""Evaluation: per token over everything, each row once, whatever the ranks, stages, layouts and budgets; several sets; K01, K05, K06."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ftcore import dist
from ftcore.batch.cursor import Cursor
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource
from ftcore.engine import join_process_group
from ftcore.run import build_engine
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.train.evaluate import Evaluation, Layout, evaluate
from ftcore.train.loop import Trainer
from tests.ranks.jobs import make_job, make_run, read_lines
from tests.ranks.pool import RankPool
from tests.ranks.reference import weighted_loss_sum
from tests.ranks.small_model import write_uneven_samples
from tests.ranks.specs import make_spec, with_section
from tests.ranks.table_runs import TableCase, table_engine

Small = tuple[ModelSource, str]
CASE = json.loads((Path(__file__).parents[1] / "cases" / "eval_case.json").read_text())
LAYOUTS = [Layout(micro_batch_tokens=budget, attention_share=0.001, layout=layout) for budget in (40, 90, 2000) for layout in ("packed", "padded")]
"""A budget of 40 holds the longest row alone."""


def score_layouts(rank: int, world_size: int, folder: str, stage: int, source: ModelSource, samples: str) -> list[Evaluation]:
    """One evaluation by layout of LAYOUTS: packed ones with our attention, padded ones with the model's own."""
    ranks = dist.start()
    scored: dict[str, list[Evaluation]] = {}
    for layout in ("packed", "padded"):
        spec = with_section(make_spec(stage), "batch", layout=layout)
        run = Path(folder) / layout
        run_dir = make_run(run, spec, world_size) if rank == 0 else RunDir(run)
        dist.barrier()
        engine = build_engine(make_job(run_dir, spec, source, samples), ranks)
        scored[layout] = [evaluate(engine, SampleSet.open(samples), each) for each in LAYOUTS if each.layout == layout]
        engine.deepspeed.destroy()
    dist.barrier()
    dist.stop()
    return [*scored["packed"], *scored["padded"]]


@pytest.fixture(scope="module")
def alone(small: Small) -> tuple[list[float], list[int]]:
    """Loss sum and supervised tokens of each row, scored alone by plain torch in double."""
    from transformers import AutoModelForCausalLM

    source, path = small
    samples, model = SampleSet.open(path), AutoModelForCausalLM.from_pretrained(source.path, dtype=torch.float64)
    with torch.no_grad():
        sums = [float(weighted_loss_sum(model, samples.sample(index))) for index in range(len(samples))]
    return sums, samples.supervised.tolist()


@pytest.mark.parametrize(("world_size", "stage"), [(1, 0), (2, 1), (2, 3), (4, 2)])
def test_evaluation_is_the_same_for_every_split(
    world_size: int, stage: int, pool: RankPool, small: Small, alone: tuple[list[float], list[int]], tmp_path: Path
) -> None:
    """K05: every row's own loss, and so their sum over their tokens, is that of the row scored alone."""
    sums, tokens = alone
    for evaluations in pool.run(score_layouts, world_size, str(tmp_path / "run"), stage, *small, logs=tmp_path / "logs"):
        assert len(evaluations) == len(LAYOUTS)
        for scored in evaluations:
            assert scored.row_tokens.tolist() == tokens
            assert scored.row_losses.tolist() == pytest.approx(sums, rel=1e-5, abs=1e-6)
            assert scored.loss == pytest.approx(sum(sums) / sum(tokens), rel=1e-6)
            assert scored.perplexity == pytest.approx(math.exp(sum(sums) / sum(tokens)), rel=1e-5)


def score_tables(rank: int, world_size: int, folder: str, cases: dict[str, TableCase]) -> dict[str, list[Evaluation]]:
    """Each case's samples, scored with every layout and several budgets."""
    ranks = dist.start()
    join_process_group(ranks)
    scored = {}
    for name, case in cases.items():
        run = Path(folder) / name
        engine = table_engine(run, case, ranks)
        layouts = [Layout(micro_batch_tokens=budget, attention_share=0.0, layout=layout) for budget in (2, 6, 100) for layout in ("packed", "padded")]
        scored[name] = [evaluate(engine, SampleSet.open(run / "samples.arrow"), layout) for layout in layouts]
        engine.deepspeed.destroy()
    dist.barrier()
    dist.stop()
    return scored


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_known_sums_give_known_numbers(world_size: int, pool: RankPool, tmp_path: Path) -> None:
    """K01 and K06."""

    def before_softplus(loss: float) -> float:
        return -math.log(math.exp(loss) - 1)

    means = [batch["sum"] / batch["tokens"] for batch in CASE["batches"]]
    tokens = tuple(token for token, batch in enumerate(CASE["batches"]) for _ in range(batch["tokens"]))
    known = TableCase(spec=make_spec(2), tokens=tokens, x=tuple(map(before_softplus, means)))
    hopeless = TableCase(spec=make_spec(2), tokens=(1, 1, 1), x=(0.0, -800.0))
    silent = TableCase(spec=make_spec(2), tokens=(1, 1), x=(0.0, 1.0), unsupervised=(0, 1))
    cases = {"known": known, "hopeless": hopeless, "silent": silent}
    for scored in pool.run(score_tables, world_size, str(tmp_path / "runs"), cases, logs=tmp_path / "logs"):
        for evaluation in scored["known"]:
            assert evaluation.loss == pytest.approx(CASE["right_loss"], rel=1e-6)
            assert evaluation.perplexity == pytest.approx(CASE["right_perplexity"], rel=1e-6)
        for evaluation in scored["hopeless"]:
            assert evaluation.loss == pytest.approx(800.0)
            assert evaluation.perplexity == math.inf
        for evaluation in scored["silent"]:
            assert (evaluation.tokens, evaluation.loss, evaluation.perplexity) == (0, 0.0, 1.0)


def train_with_sets(rank: int, world_size: int, folder: str, spec: Spec, source: ModelSource, samples: str, sets: dict[str, str]) -> list[dict[str, object]]:
    """Events of a short run with several evaluation sets."""
    ranks = dist.start()
    run_dir = make_run(Path(folder), spec, world_size) if rank == 0 else RunDir(Path(folder))
    dist.barrier()
    job = replace(make_job(run_dir, spec, source, samples), held_out={name: SampleSet.open(path) for name, path in sets.items()})
    engine = build_engine(job, ranks)
    Trainer(engine, job, Cursor(order_seed=spec.train.seed, data_fingerprint=job.train.fingerprint)).run()
    dist.barrier()
    dist.stop()
    return read_lines(run_dir.events)


def test_several_sets_are_scored_apart(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """Before the first update, when due and at the end; the first numbers are those of the base, the later ones the same for any split."""
    source, path = small
    sets = {"eval": path}
    for index, name in enumerate(("hard", "regression")):
        write_uneven_samples(tmp_path / f"{name}.arrow", count=7 + index, seed=70 + index)
        sets[name] = str(tmp_path / f"{name}.arrow")
    found = {}
    for world_size, stage, layout in ((1, 0, "packed"), (2, 3, "padded"), (4, 2, "packed")):
        spec = with_section(make_spec(stage, updates=4), "evaluation", eval_steps=2)
        spec = with_section(spec, "batch", layout=layout)
        arguments = (str(tmp_path / f"run_{world_size}"), spec, source, path, sets)
        events = [each for each in pool.run(train_with_sets, world_size, *arguments, logs=tmp_path / "logs")[0] if each["event"] == "evaluation"]
        assert [(each["update"], each["set"]) for each in events] == [(update, name) for update in (0, 2, 4) for name in sets]
        assert [each["tokens"] for each in events] == [int(SampleSet.open(sets[str(each["set"])]).supervised.sum()) for each in events]
        found[world_size] = [float(str(each["loss"])) for each in events]
        assert [each["perplexity"] for each in events] == pytest.approx(np.exp(found[world_size]).tolist())
    assert len(set(found[1])) == 9
    assert found[2] == pytest.approx(found[1], rel=1e-5)
    assert found[4] == pytest.approx(found[1], rel=1e-5)
