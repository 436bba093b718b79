"""One rank of an evaluation: `python -m ftcore.evaluate_model EVALUATION`, started by the node's supervisor."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from ftcore import stop_request

if __name__ == "__main__":
    # Before anything that starts threads is imported: each would take signals too.
    stop_request.hold_signals()

from transformers import AutoTokenizer

from ftcore import dist
from ftcore.agreement import Agreement
from ftcore.answers import TOKENS_FOR_TRAINED_ONE, Limits, deal_prompts, generate_batch, ready_to_generate
from ftcore.batch.cost import attention_share_of
from ftcore.data.cache import SampleSet
from ftcore.engine_inference import InferenceEngine, join_process_group
from ftcore.evaluated import load_evaluated
from ftcore.evaluation_plan import EvaluationPlan, load_plan
from ftcore.process import run_dir_argument, run_main
from ftcore.questions import Prompt, TokenIds, load_prompts
from ftcore.scoring.answer_metrics import metrics_for
from ftcore.scoring.result import Result, RowResult, Settings, set_result
from ftcore.scoring.table import render_result
from ftcore.spec.errors import CheckpointError
from ftcore.spec.evaluation import EvaluationDir, EvaluationRequest, load_request
from ftcore.spec.events import emit, emit_at
from ftcore.spec.run_dir import RunDir, write_atomic
from ftcore.train.evaluate import Evaluation, Layout, evaluate
from ftcore.train.isolation import require_isolated_samples

Scores = dict[int, dict[str, float]]
"""Row of the data file -> its answer's scores."""


def main(folder: RunDir) -> None:
    """Scores this rank's share; rank 0 writes the result, last evaluation.json."""
    started = time.monotonic()
    request_to_stop = stop_request.take_signals()
    paths = EvaluationDir(folder.path)
    request, plan = load_request(paths.request), load_plan(paths.prepared)
    emit_at("start", 0)
    ranks = dist.start(request.resolved.spec.cluster.stall_timeout)
    agreement = Agreement(dist.shared_store("stop"), rank=ranks.rank, world_size=ranks.world_size, request=request_to_stop)
    if ranks.world_size != request.resolved.world_size:
        raise CheckpointError(f"{ranks.world_size} ranks were started, the request says {request.resolved.world_size}", where="request.json")
    if ranks.is_first:
        emit("progress", stage="load", done=0, total=1, text=f"loading {request.name}")
    join_process_group(ranks)
    engine = InferenceEngine(load_evaluated(request, plan, folder.ds_config, ranks), folder.ds_config, ranks)
    agreement.stop_here()
    losses = token_losses_of(engine, request, plan, agreement)
    generated = answers_of(engine, request, plan, paths, agreement) if request.resolved.spec.evaluation.metrics else {}
    if ranks.is_first:
        scores = write_predictions(request, plan, paths, losses, generated)
        write_result(request, plan, paths, losses, scores, seconds=time.monotonic() - started)
    dist.barrier()
    agreement.close()
    dist.stop()


def token_losses_of(engine: InferenceEngine, request: EvaluationRequest, plan: EvaluationPlan, agreement: Agreement) -> dict[str, Evaluation]:
    """The rows' losses of every set, the same on every rank."""
    batch = request.resolved.spec.batch
    layout = Layout(micro_batch_tokens=batch.micro_batch_tokens, attention_share=attention_share_of(plan.source.path), layout=batch.layout)
    with engine.computing():
        require_isolated_samples(engine, batch.layout)
        return {name: evaluate(engine, SampleSet.open(each.arrow), layout, before_step=agreement.stop_here) for name, each in plan.sets.items()}


def answers_of(
    engine: InferenceEngine, request: EvaluationRequest, plan: EvaluationPlan, paths: EvaluationDir, agreement: Agreement
) -> dict[str, list[TokenIds]]:
    """The generated tokens for every set's prompts, in the order of the questions, on every rank."""
    spec = request.resolved.spec
    config = engine.module.config
    limits = Limits(
        max_new_tokens=spec.evaluation.max_new_tokens,
        batch_tokens=TOKENS_FOR_TRAINED_ONE * spec.batch.micro_batch_tokens,
        positions=getattr(config, "max_position_embeddings", None),
    )
    with engine.computing(), ready_to_generate(engine.module) as base:
        return {
            name: answer_over_ranks(base, engine, load_prompts(paths.questions(name)), list(plan.stops), limits, before_round=agreement.stop_here)
            for name in plan.sets
        }


def answer_over_ranks(
    base: Any,
    engine: InferenceEngine,
    prompts: Sequence[Prompt],
    stops: list[int],
    limits: Limits,
    *,
    before_round: Callable[[], None] = lambda: None,
) -> list[TokenIds]:
    """What `base`, which comes from `ready_to_generate`, answers to each prompt; dealt over the ranks, the same on every rank."""
    ranks = engine.ranks
    rounds = deal_prompts([len(prompt.ids) for prompt in prompts], ranks.world_size, limits)
    mine: list[tuple[int, TokenIds]] = []
    for done, dealt in enumerate(rounds):
        before_round()
        emit_at("evaluate")
        if ranks.is_first:
            emit("progress", stage="evaluate", done=done, total=len(rounds), text=f"answers to {len(prompts)} rows")
        # The longest prompt of the round, on whichever rank, so that no rank that goes on for another one runs out of positions.
        longest = max(len(prompts[index].ids) for part in dealt for index in part)
        most = limits.max_new_tokens if limits.positions is None else max(1, min(limits.max_new_tokens, limits.positions - longest))
        chosen = dealt[ranks.rank]
        # A rank without prompts answers one all the same where the others need it in every forward.
        asked = chosen or (dealt[0][:1] if engine.in_step else ())
        if asked:
            found = generate_batch(base, [prompts[index].ids for index in asked], stops=stops, max_new_tokens=most, in_step=engine.in_step)
            mine += list(zip(chosen, found, strict=False))
    answers: list[TokenIds] = [() for _ in prompts]
    for part in dist.gather_objects(mine, ranks):
        for index, answer in part:
            answers[index] = answer
    return answers


def write_predictions(
    request: EvaluationRequest, plan: EvaluationPlan, paths: EvaluationDir, losses: dict[str, Evaluation], generated: dict[str, list[TokenIds]]
) -> dict[str, Scores]:
    """Scores the answers of every set and writes predictions/SET.jsonl; returns the scores by set and row."""
    if not generated:
        return {}
    wanted = request.resolved.spec.evaluation
    metrics = metrics_for(wanted.metrics, wanted.regex)
    tokenizer = AutoTokenizer.from_pretrained(plan.source.path, trust_remote_code=plan.source.trust_remote_code)
    found: dict[str, Scores] = {}
    for name, answers in generated.items():
        samples, scored = SampleSet.open(plan.sets[name].arrow), losses[name]
        loss_of = {int(row): scored.row_losses[index] / max(1, int(scored.row_tokens[index])) for index, row in enumerate(samples.rows)}
        lines, scores = [], {}
        for prompt, ids in zip(load_prompts(paths.questions(name)), answers, strict=True):
            question = prompt.question
            answer = tokenizer.decode(ids, skip_special_tokens=True).strip()
            scores[question.row] = {metric: measure(question.expected, answer) for metric, measure in metrics.items()}
            shown = {"messages": question.messages} if question.messages else {"prompt": question.prompt}
            line = {"row": question.row, **shown, "expected": question.expected, "answer": answer}
            line |= {"scores": scores[question.row], "loss": loss_of[question.row]}
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        write_atomic(paths.predictions(name), "".join(lines))
        found[name] = scores
    return found


def write_result(
    request: EvaluationRequest, plan: EvaluationPlan, paths: EvaluationDir, losses: dict[str, Evaluation], scores: dict[str, Scores], *, seconds: float
) -> None:
    """Writes rows/SET.jsonl, evaluation.txt and evaluation.json."""
    spec = request.resolved.spec
    sets = {}
    for name, scored in losses.items():
        numbers = SampleSet.open(plan.sets[name].arrow).rows
        rows = [
            RowResult(row=int(row), loss_sum=float(loss), tokens=int(tokens), scores=scores.get(name, {}).get(int(row), {}))
            for row, loss, tokens in zip(numbers, scored.row_losses, scored.row_tokens, strict=True)
        ]
        write_atomic(paths.rows(name), "".join(row.to_line() for row in rows))
        sets[name] = set_result(rows, path=spec.data.held_out[name].path, fingerprint=plan.sets[name].fingerprint)
    settings = Settings(
        world_size=request.resolved.world_size,
        zero_stage=spec.zero.stage,
        precision=spec.train.precision,
        metrics=spec.evaluation.metrics,
        regex=spec.evaluation.regex,
        max_new_tokens=spec.evaluation.max_new_tokens,
        max_rows=spec.evaluation.max_rows,
    )
    created = datetime.now(UTC).isoformat(timespec="seconds")
    result = Result(model=plan.identity, settings=settings, sets=sets, seconds=round(seconds, 3), created=created)
    write_atomic(paths.table, render_result(result))
    write_atomic(paths.result, result.to_json())


if __name__ == "__main__":
    run_main(main, run_dir_argument(sys.argv[1:]))
