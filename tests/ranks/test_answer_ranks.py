"""Answers and losses are the same for any number of ranks and any stage; in ZeRO-3 a rank that is done goes on with the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftcore import dist
from ftcore.answers import Limits, deal_prompts, ready_to_generate
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource
from ftcore.engine_inference import InferenceEngine, join_process_group
from ftcore.evaluate_model import answer_over_ranks
from ftcore.model.load import load_base, partitioned_loading
from ftcore.questions import Prompt, Question, TokenIds
from ftcore.train.evaluate import Layout, evaluate
from tests.ranks.jobs import make_run
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]
Found = tuple[list[TokenIds], list[float]]
EVERYTHING_SHARED = {"stage3_param_persistence_threshold": 0}
"""Else every weight of so small a model would stay whole on each rank, and a forward would need nobody else."""
ONE_ROW_EACH = Limits(max_new_tokens=30, batch_tokens=1)
PROMPTS = [Prompt(question=Question(row=row, expected=""), ids=tuple(range(3 + row, 3 + 2 * row))) for row in range(1, 6)]


def answer(rank: int, world_size: int, folder: str, stage: int, source: ModelSource, samples: str, stops: list[int]) -> Found:
    ranks = dist.start()
    spec = make_spec(stage)
    if stage == 3:
        spec = with_section(spec, "zero", overrides={"zero_optimization": EVERYTHING_SHARED})
    run_dir = make_run(Path(folder) / str(rank), spec, world_size)
    join_process_group(ranks)
    with partitioned_loading(run_dir.ds_config):
        model = load_base(spec.model, source)
    config = Path(folder) / f"inference_{rank}.json"
    config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage, **(EVERYTHING_SHARED if stage == 3 else {})}}))
    engine = InferenceEngine(model, config, ranks)
    losses = evaluate(engine, SampleSet.open(samples), Layout(micro_batch_tokens=80, attention_share=0.001))  # type: ignore[arg-type]
    with ready_to_generate(engine.module) as base:
        found = answer_over_ranks(base, engine, PROMPTS, stops, ONE_ROW_EACH)
    dist.barrier()
    dist.stop()
    return found, losses.row_losses.tolist()


@pytest.fixture(scope="module")
def alone(pool: RankPool, small: Small, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """One rank, whole model, nothing stops an answer."""
    folder = tmp_path_factory.mktemp("alone")
    found: Found = pool.run(answer, 1, str(folder), 0, *small, [], logs=folder / "logs")[0]
    return found


@pytest.mark.parametrize("stage", [2, 3])
def test_ranks_that_finish_apart(stage: int, alone: Found, pool: RankPool, small: Small, tmp_path: Path) -> None:
    """I04: a stop token after a few tokens of one answer that others never write; both ranks end, with the answers of one rank.

    Batches hold one row, so that the ranks would take unequal numbers of forward passes if each stopped at the end of its own answers.
    """
    answers, losses = alone
    stop = answers[-1][3]
    expected = [ids[: ids.index(stop)] if stop in ids else ids for ids in answers]
    rounds = deal_prompts([len(prompt.ids) for prompt in PROMPTS], 2, ONE_ROW_EACH)
    assert all(len(part) <= 1 for dealt in rounds for part in dealt)
    # In stage 3 a rank that has no prompt left repeats that of the first rank.
    steps = [sum(len(expected[index]) for dealt in rounds for index in dealt[rank] or dealt[0]) for rank in range(2)]
    assert len({len(ids) for ids in expected}) > 1 and steps[0] != steps[1]
    for found, rows in pool.run(answer, 2, str(tmp_path / "run"), stage, *small, [stop], logs=tmp_path / "logs"):
        assert found == expected
        assert rows == pytest.approx(losses, rel=1e-6)
