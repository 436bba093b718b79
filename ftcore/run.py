"""One rank of a run: `python -m ftcore.run RUN`, started by the node's supervisor."""

from __future__ import annotations

import sys

from ftcore import stop_request

if __name__ == "__main__":
    # Before anything that starts threads is imported: each would take signals too.
    stop_request.hold_signals()

from ftcore import dist
from ftcore.agreement import Agreement
from ftcore.batch.cost import attention_share_of
from ftcore.batch.cursor import Cursor
from ftcore.batch.window import UpdateSequence
from ftcore.checkpoint.find import Search
from ftcore.checkpoint.load import find_over_ranks, load_checkpoint, seed_all
from ftcore.checkpoint.retention import set_aside_newer
from ftcore.checkpoint.room import require_room
from ftcore.data.cache import SampleSet
from ftcore.data.mix import SampleMix, supervised_share_of
from ftcore.data.prepared import Prepared, load_prepared
from ftcore.dist import Ranks
from ftcore.engine import Engine, join_process_group
from ftcore.engine_leaves import gather_whole_layers
from ftcore.engine_state import require_carriable
from ftcore.metrics.writer import record_event
from ftcore.model.build import build_model
from ftcore.model.groups import parameter_groups
from ftcore.optimizers import optimizer_maker
from ftcore.process import run_dir_argument, run_main
from ftcore.spec.errors import CheckpointError
from ftcore.spec.events import emit, emit_at
from ftcore.spec.resolved import ResolvedSpec, load_resolved
from ftcore.spec.run_dir import RunDir
from ftcore.train.data_change import settle
from ftcore.train.isolation import require_isolated_samples
from ftcore.train.loop import Job, Trainer


def main(run_dir: RunDir) -> None:
    """Trains this rank's share of the run to its end, from the newest whole checkpoint if there is one."""
    request = stop_request.take_signals()
    resolved, prepared = load_resolved(run_dir.resolved), load_prepared(run_dir.prepared)
    emit_at("start", 0)
    ranks = dist.start(resolved.spec.cluster.stall_timeout)
    agreement = Agreement(dist.shared_store("stop"), rank=ranks.rank, world_size=ranks.world_size, request=request)
    if ranks.world_size != resolved.world_size:
        raise CheckpointError(f"{ranks.world_size} ranks were started, the spec says {resolved.world_size}", where="resolved.json")
    if ranks.is_first:
        emit("progress", stage="load", done=0, total=1, text=f"loading {prepared.model.name}")
    emit_at("load")
    job = make_job(resolved, prepared, run_dir)
    engine = build_engine(job, ranks)
    emit_at("load")
    # After the model is made, which seeds every rank alike for an adapter's first values.
    seed_all(resolved.spec.train.seed, 0, ranks.rank)
    require_carriable(engine)
    cursor = restore(engine, job)
    note = require_room(engine, run_dir.checkpoints, job.spec)
    if note and ranks.is_first:
        record_event(run_dir, "note", text=note)
    require_isolated_samples(engine, job.spec.batch.layout)
    Trainer(engine, job, cursor, agreement).run()
    dist.barrier()
    agreement.close()
    dist.stop()


def make_job(resolved: ResolvedSpec, prepared: Prepared, run_dir: RunDir) -> Job:
    """Opens the prepared data and works out the run's updates; those of a stream are found while training."""
    train = None if prepared.stream is not None else SampleMix.open({name: each.arrow for name, each in prepared.train.items()})
    batch, sets = resolved.spec.batch, resolved.spec.data.training
    return Job(
        spec=resolved.spec,
        run_dir=run_dir,
        train=train,
        held_out={name: SampleSet.open(each.arrow) for name, each in prepared.eval.items()},
        sequence=None if train is None else UpdateSequence(train, batch=batch, train=resolved.spec.train, draws=sets),
        stream=prepared.stream,
        attention_share=attention_share_of(prepared.model.path, 1.0 if train is None else supervised_share_of(train)),
        base=prepared.model,
    )


def build_engine(job: Job, ranks: Ranks) -> Engine:
    """The model on this rank's device, wrapped by DeepSpeed with the run's ds_config.json."""
    join_process_group(ranks)
    model = build_model(job.spec, job.base, job.run_dir.ds_config)
    zero = job.spec.zero
    if zero.stage == 3 and zero.offload_optimizer == zero.offload_param == "none":
        gather_whole_layers(model)
    groups = parameter_groups(model, job.spec)
    make = optimizer_maker(job.spec.optimizer)
    return Engine(model, groups, job.run_dir.ds_config, ranks, coalesce=bool(job.spec.zero.coalesce_grad_reduction), optimizer=make)


def restore(engine: Engine, job: Job) -> Cursor:
    """The cursor to go on from: of the newest whole checkpoint, or the beginning where none was ever whole. Says which, and why newer ones were skipped.

    Raises CheckpointError when checkpoints are there and none is whole, or the newest whole one is not of this job.
    """
    start = Cursor.at_start(job.data, job.spec.train.seed)
    search = find_over_ranks(job.run_dir.checkpoints, engine.ranks)
    first = engine.ranks.is_first
    for reason in search.skipped if first else ():
        record_event(job.run_dir, "note", text=f"checkpoint skipped: {reason}")
    if search.found is None:
        _require_none_damaged(job, search)
        if first and job.run_dir.metrics.exists():
            record_event(job.run_dir, "note", text="stopped before its first checkpoint was whole: starting from update 0")
        return start
    cursor = load_checkpoint(engine, search.found, spec=job.spec, base=job.base, tell=lambda text: record_event(job.run_dir, "note", text=text))
    cursor = settle(cursor, job.data, job.spec.train.seed, job.run_dir, engine.ranks)
    if first:
        # Only now: a resume that is refused changes nothing.
        set_aside_newer(search.found.path)
        record_event(job.run_dir, "resumed", update=cursor.next_update, path=search.found.path.name)
        emit("note", text=f"resumed from {search.found.path.name}: {cursor.next_update} of {job.total_updates} updates done")
    return cursor


def _require_none_damaged(job: Job, search: Search) -> None:
    """Raises CheckpointError when checkpoints are there and none is whole: training from the beginning is the user's decision."""
    checkpoints = job.run_dir.checkpoints
    if search.lost:
        raise CheckpointError(
            f"no checkpoint is whole: {'; '.join(search.lost)}",
            where=str(checkpoints),
            fix=f"put the damaged files back, or move {checkpoints} away to start again from update 0",
        )


if __name__ == "__main__":
    run_main(main, run_dir_argument(sys.argv[1:]))
