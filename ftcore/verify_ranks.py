"""One rank of `ftlaunch verify-loss`: `python -m ftcore.verify_ranks VERIFICATION`, which trains the splits of one leg, one after the other."""

from __future__ import annotations

import dataclasses
import gc
import os
import shutil
import sys

from ftcore import stop_request

if __name__ == "__main__":
    # Before anything that starts threads is imported: each would take signals too.
    stop_request.hold_signals()

import torch

from ftcore import dist
from ftcore.batch.cursor import Cursor
from ftcore.checkpoint.load import seed_all
from ftcore.checkpoint.room import require_room
from ftcore.checkpoint.saver import Saver
from ftcore.data.prepared import Prepared, load_prepared
from ftcore.dist import Ranks
from ftcore.engine import Engine
from ftcore.process import run_dir_argument, run_main
from ftcore.run import build_engine, make_job, restore
from ftcore.spec.errors import PREEMPTED, CheckpointError
from ftcore.spec.events import attempt, emit
from ftcore.spec.resolved import load_resolved
from ftcore.spec.run_dir import RunDir, write_atomic
from ftcore.spec.verification import Part, VerificationDir, VerificationRequest, load_verification
from ftcore.train.isolation import require_isolated_samples
from ftcore.train.loop import Job, Trainer
from ftcore.verification.parameters import parameter_gap

REORDER_SEED = 1
REGROUPING_SHARE = 1.0
"""c of the cost l + c·l² that the reordered reference is dealt by: other samples share a micro-step than in the reference."""


def main(run_dir: RunDir) -> None:
    """Trains the parts of the leg whose number, from 1, is this launch's attempt."""
    # Nothing of an unfinished check is of use later.
    stop_request.take_signals(lambda: os._exit(PREEMPTED))
    paths = VerificationDir(run_dir.path)
    request = load_verification(paths.request)
    leg, prepared = request.legs[attempt() - 1], load_prepared(paths.preparation.prepared)
    ranks = dist.start()
    if ranks.world_size != leg.world_size:
        raise CheckpointError(f"{ranks.world_size} ranks were started, the check says {leg.world_size}", where=str(paths.request))
    for part in leg.parts:
        train_part(request, paths, part, prepared, ranks)
    dist.barrier()
    dist.stop()


def train_part(request: VerificationRequest, paths: VerificationDir, part: Part, prepared: Prepared, ranks: Ranks) -> None:
    """Trains a split, or half of one, as an ordinary run; measures the gap of its parameters once it is whole, and removes its checkpoints then."""
    run_dir, reference = paths.run(part.split), paths.run(request.reference.name)
    _train(request, part, run_dir, prepared, ranks)
    # Only now that nothing holds the engine is its memory free for the next one.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if part.until == request.updates and part.split != request.reference.name and ranks.is_first:
        gap = parameter_gap(reference.checkpoints, run_dir.checkpoints, request.updates)
        write_atomic(paths.gap(part.split), gap.to_json())
        # With moments each is 12 bytes a trained parameter, and nothing needs it any more.
        shutil.rmtree(run_dir.checkpoints)
    dist.barrier()


def _train(request: VerificationRequest, part: Part, run_dir: RunDir, prepared: Prepared, ranks: Ranks) -> None:
    resolved = load_resolved(run_dir.resolved)
    if ranks.is_first:
        emit("note", text=f"{part.split}: on {ranks.world_size} ranks in ZeRO stage {resolved.spec.zero.stage}, up to update {part.until}")
    job = make_job(resolved, prepared, run_dir)
    if request.split(part.split).reordered:
        job = dataclasses.replace(job, reorder_seed=REORDER_SEED, attention_share=REGROUPING_SHARE)
    engine = build_engine(job, ranks)
    turn_off_dropout(engine.module)
    seed_all(job.spec.train.seed, 0, ranks.rank)
    cursor = restore(engine, job)
    require_room(engine, run_dir.checkpoints, job.spec)
    require_isolated_samples(engine, job.spec.batch.layout)
    if part.split == request.reference.name:
        # Where training begins: gaps are measured by how far it moves.
        _save(engine, job, cursor)
    trainer = Trainer(engine, job, cursor)
    engine.train()
    for update in range(cursor.next_update, part.until):
        trainer.train_update(update)
    trainer.close()
    _save(engine, job, trainer.saved_cursor())
    engine.deepspeed.destroy()


def turn_off_dropout(module: torch.nn.Module) -> None:
    """Sets every dropout to 0: with it, losses of two splits have no reason to agree."""
    for each in module.modules():
        if isinstance(each, torch.nn.modules.dropout._DropoutNd):
            each.p = 0.0
        for name in ("attention_dropout", "dropout"):
            # Attention's own, which most models hold as a number.
            if isinstance(getattr(each, name, None), float):
                setattr(each, name, 0.0)


def _save(engine: Engine, job: Job, cursor: Cursor) -> None:
    """A durable checkpoint of the state after `cursor.next_update` updates."""
    for outcome in Saver(engine, job.run_dir.checkpoints, spec=job.spec, base=job.base).finish(cursor):
        if outcome.path is None and engine.ranks.is_first:
            emit("note", text=f"the checkpoint after update {outcome.update} was not saved: {outcome.reason}")


if __name__ == "__main__":
    run_main(main, run_dir_argument(sys.argv[1:]))
