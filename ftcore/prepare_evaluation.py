"""Makes what the ranks of an evaluation need before any of them exists: model, samples, questions. `python -m ftcore.prepare_evaluation EVALUATION`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ftcore import stop_request
from ftcore.base_check import check_base
from ftcore.data.build import prepare_set
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource, PreparedSet, load_prepared
from ftcore.data.templates.named import template_text
from ftcore.data.tokenizer import load_tokenizer
from ftcore.evaluation_plan import EvaluationPlan
from ftcore.prepare import check_fits
from ftcore.questions import make_prompts, read_questions, stop_ids, write_prompts
from ftcore.scoring.answer_metrics import metrics_for
from ftcore.scoring.result import read_result
from ftcore.source import resolve_model_source
from ftcore.spec.errors import DataError, Problem
from ftcore.spec.evaluation import EvaluationDir, EvaluationRequest, load_request
from ftcore.spec.events import emit
from ftcore.spec.run_dir import RunDir, write_atomic

T = TypeVar("T")


def main(folder: RunDir) -> None:
    """Writes prepared.json and questions/ of a folder that holds request.json. Raises FtError as its parts do."""
    stop_request.stop_anywhere()
    paths = EvaluationDir(folder.path)
    request = load_request(paths.request)
    spec, cache_dir = request.resolved.spec, Path(request.resolved.cache_dir)
    metrics_for(spec.evaluation.metrics, spec.evaluation.regex)
    source = resolve_model_source(spec.model, cache_dir)
    check_base(spec, source, cache_dir)
    from ftcore.evaluated import identify

    identity = identify(request, source)
    if request.kind == "run" and not uses_trained_template(RunDir(Path(request.path)), spec.data.chat_template):
        emit("note", text="the chat template is not the one that the run was trained with")
    sets = _prepare_sets(request, source)
    if request.against:
        _require_same_rows(request.against, sets)
    stops = _write_questions(request, source, sets, paths) if spec.evaluation.metrics else ()
    write_atomic(paths.prepared, EvaluationPlan(source=source, identity=identity, sets=sets, stops=stops).to_json())


def _prepare_sets(request: EvaluationRequest, source: ModelSource) -> dict[str, PreparedSet]:
    """Every held-out set, made or found in the cache. Raises DataError with the mistakes of all of them."""
    data, cache_dir = request.resolved.spec.data, Path(request.resolved.cache_dir)

    def prepare(name: str) -> PreparedSet:
        key = data.held_out_keys[name]
        prepared = prepare_set(key, data.held_out[name], data, source, cache_dir)
        check_fits(key, prepared, source)
        return prepared

    return _for_each_set(list(data.held_out), prepare)


def _write_questions(request: EvaluationRequest, source: ModelSource, sets: dict[str, PreparedSet], paths: EvaluationDir) -> tuple[int, ...]:
    """Writes the prompts of each set's first rows; returns the tokens that end an answer. Raises DataError with the mistakes of all sets."""
    spec = request.resolved.spec
    tokenizer = load_tokenizer(source.path, trust_remote_code=source.trust_remote_code, chat_template=spec.data.chat_template)
    stops: set[int] = set()

    def write(name: str) -> None:
        samples = SampleSet.open(sets[name].arrow)
        rows = {int(row) for row in samples.rows[: spec.evaluation.max_rows]}
        questions = read_questions(spec.data.held_out[name], rows, spec.data.held_out_keys[name], Path(request.resolved.cache_dir))
        write_prompts(paths.questions(name), make_prompts(tokenizer, questions, samples))
        stops.update(stop_ids(tokenizer, _generation_stops(source), chat=any(question.messages for question in questions)))

    _for_each_set(list(sets), write)
    return tuple(sorted(stops))


def uses_trained_template(run: RunDir, choice: str) -> bool:
    """Whether data.chat_template gives the text now that it gave when the run was prepared, as far as the run still says. Raises SpecError
    when there is no such template."""
    return not run.prepared.is_file() or (template_text(choice) or "") == load_prepared(run.prepared).chat_template


def _for_each_set(names: list[str], make: Callable[[str], T]) -> dict[str, T]:
    """`make` of each name. Raises DataError with the problems of all of them together."""
    made: dict[str, T] = {}
    problems: list[Problem] = []
    for name in names:
        try:
            made[name] = make(name)
        except DataError as error:
            problems.extend(problem for problem in error.problems if problem not in problems)
    if problems:
        raise DataError(problems)
    return made


def _generation_stops(source: ModelSource) -> int | list[int] | None:
    """eos_token_id of the model's generation_config.json, or of config.json; None where neither says."""
    for name in ("generation_config.json", "config.json"):
        try:
            stops = json.loads((Path(source.path) / name).read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError):
            continue
        if stops is not None:
            return stops  # type: ignore[no-any-return]
    return None


def _require_same_rows(against: str, sets: dict[str, PreparedSet]) -> None:
    """Raises DataError before anything is computed when the earlier result is of other rows."""
    _, earlier = read_result(Path(against))
    other = [name for name in sets if name in earlier.sets and earlier.sets[name].fingerprint != sets[name].fingerprint]
    fix = "evaluate both with the same data, tokenizer, chat template, data.max_length and data.overlong"
    if not sets.keys() & earlier.sets.keys():
        raise DataError(f"{against} shares no held-out set with the spec: it has {', '.join(earlier.sets)}", where="--against", fix=fix)
    if other:
        raise DataError([Problem(what=f"its rows are not those of {against}", where=f"set {name}", fix=fix) for name in other])


if __name__ == "__main__":
    from ftcore.process import run_dir_argument, run_main

    run_main(main, run_dir_argument(sys.argv[1:]))
