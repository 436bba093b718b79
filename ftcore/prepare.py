"""Makes everything the ranks need before any of them exists: base model folder, cached samples, plan. `python -m ftcore.prepare RUN`."""

from __future__ import annotations

import sys
from pathlib import Path

from ftcore import stop_request
from ftcore.base_check import check_base
from ftcore.data.build import prepare_set
from ftcore.data.cache import SampleSet
from ftcore.data.cache_errors import writing_cache
from ftcore.data.lengths import note_lengths
from ftcore.data.mix import SampleMix
from ftcore.data.model_room import ModelRoom
from ftcore.data.prepared import ModelSource, Prepared, PreparedSet
from ftcore.data.stream_source import StreamSource
from ftcore.data.templates.named import template_text
from ftcore.source import resolve_model_source
from ftcore.spec.errors import DataError, Problem, SpecError
from ftcore.spec.resolved import ResolvedSpec, load_resolved
from ftcore.spec.run_dir import RunDir, write_atomic
from ftcore.spec.schedule_lengths import schedule_problems
from ftcore.stream.prepare import prepare_stream


def main(run_dir: RunDir) -> None:
    """Writes prepared.json, plan.json and plan.txt of a run folder that holds resolved.json.

    Raises SpecError for a schedule that is longer than the run, CheckpointError for other data than a checkpoint was written with, else FtError as its
    parts do.
    """
    from ftcore.batch.plan import Plan, plan_run
    from ftcore.batch.plan_counts import table_of_updates
    from ftcore.stream.plan import StreamPlan, plan_stream

    stop_request.stop_anywhere()
    resolved = load_resolved(run_dir.resolved)
    prepared = prepare(resolved, run_dir.bad_rows)
    require_same_data(resolved, prepared, run_dir)
    write_atomic(run_dir.prepared, prepared.to_json())
    evaluation = {name: SampleSet.open(held_out.arrow) for name, held_out in prepared.eval.items()}
    updates = ""
    if prepared.stream is not None:
        plan: Plan | StreamPlan = plan_stream(resolved, prepared.stream, evaluation, prepared)
    else:
        plan, counts = plan_run(resolved, _mix(prepared), evaluation, prepared)
        updates = table_of_updates(counts)
    misfits = schedule_problems(resolved.spec.schedule, plan.total_updates)
    if misfits:
        raise SpecError(misfits)
    write_atomic(run_dir.plan_json, plan.to_json())
    write_atomic(run_dir.plan_txt, plan.render())
    if updates:
        write_atomic(run_dir.plan_updates, updates)


def prepare(resolved: ResolvedSpec, mistakes_dir: Path | None = None) -> Prepared:
    """Model source and data sets of a resolved spec, made or found in its cache; `mistakes_dir` as in `prepare_set`.

    Raises SpecError for the model and the method's targets, DataError for the mistakes of all data sets together.
    """
    cache_dir = Path(resolved.cache_dir)
    model = resolve_model_source(resolved.spec.model, cache_dir)
    check_base(resolved.spec, model, cache_dir)
    return prepare_data(resolved, model, mistakes_dir)


def prepare_data(resolved: ResolvedSpec, model: ModelSource, mistakes_dir: Path | None = None) -> Prepared:
    """Data sets of a resolved spec, made or found in its cache, for the config and the tokenizer of a model. Raises DataError as `prepare` does."""
    cache_dir = Path(resolved.cache_dir)
    data = resolved.spec.data
    sets: dict[str, PreparedSet] = {}
    problems: list[Problem] = []
    stream: StreamSource | None = None
    if data.streaming:
        try:
            with writing_cache(cache_dir):
                stream = prepare_stream(data, model, cache_dir)
        except DataError as error:
            problems.extend(error.problems)
    for key, dataset in data.all_sets.items():
        if data.streaming and key in data.keyed_training:
            continue
        try:
            with writing_cache(cache_dir):
                sets[key] = prepare_set(key, dataset, data, model, cache_dir, mistakes_dir)
                check_fits(key, sets[key], model)
                note_lengths(sets[key], dataset, data, resolved.spec.model, cache_dir)
        except DataError as error:
            problems.extend(problem for problem in error.problems if problem not in problems)
    if problems:
        raise DataError(problems)
    return Prepared(
        train={name: sets[key] for name, key in data.training_keys.items() if not data.streaming},
        eval={name: sets[key] for name, key in data.held_out_keys.items()},
        model=model,
        stream=stream,
        chat_template=template_text(data.chat_template) or "",
    )


def require_same_data(resolved: ResolvedSpec, prepared: Prepared, run_dir: RunDir) -> None:
    """Raises CheckpointError when the run's newest whole checkpoint was written with other data and nobody allowed it: no rank has to start for that.

    The ranks look again, since they alone know which checkpoint they go on from.
    """
    from ftcore.batch.data_identity import DataIdentity
    from ftcore.batch.mix import MixOrder
    from ftcore.checkpoint.position import newest_position

    cursor = newest_position(run_dir.checkpoints, digests=False)
    if cursor is None:
        return
    if prepared.stream is not None:
        data = DataIdentity.of_stream(prepared.stream)
    else:
        mix = _mix(prepared)
        data = DataIdentity.of_sets(mix, MixOrder.of(mix, resolved.spec.data.training))
    if cursor.data_fingerprint != data.fingerprint:
        # A checkpoint that only seems whole must not be the reason to refuse.
        cursor = newest_position(run_dir.checkpoints, digests=True)
    if cursor is None or cursor.data_fingerprint == data.fingerprint:
        return
    from ftcore.train.data_change import require_settled

    require_settled(cursor, data, resolved.spec.train.seed, run_dir)


def _mix(prepared: Prepared) -> SampleMix:
    return SampleMix.open({name: each.arrow for name, each in prepared.train.items()})


def check_fits(where: str, prepared: PreparedSet, model: ModelSource) -> None:
    """Raises DataError when the model has no position or no embedding for a sample's tokens."""
    samples = SampleSet.open(prepared.arrow)
    problems = ModelRoom.of(model).misfits(where, longest=int(samples.lengths.max()), highest_id=samples.highest_id())
    if problems:
        raise DataError(problems)


if __name__ == "__main__":
    from ftcore.process import run_dir_argument, run_main

    run_main(main, run_dir_argument(sys.argv[1:]))
