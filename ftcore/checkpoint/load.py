"""Put a checkpoint's state into a fresh engine of any world size and stage."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import torch
from safetensors.torch import load_file

from ftcore.batch.cursor import Cursor
from ftcore.checkpoint import layout
from ftcore.checkpoint.find import Found, Search, list_checkpoints, newest_whole
from ftcore.checkpoint.manifest import FileEntry, damage, read_manifest
from ftcore.checkpoint.read import StateReader
from ftcore.checkpoint.retention import best_of
from ftcore.checkpoint.rng import load_rng
from ftcore.coded_moments import CodedPiece, fill
from ftcore.data.prepared import ModelSource
from ftcore.dist import Ranks, gather_objects
from ftcore.engine import Engine
from ftcore.engine_fields import MASTER
from ftcore.engine_state import (
    OwnedSlice,
    optimizer_state,
    prepare_codes,
    prepare_state,
    publish_masters,
    set_loss_scale_state,
    slices_to_load,
    state_of,
    trained_shapes,
)
from ftcore.spec.errors import CheckpointError
from ftcore.spec.events import emit, emit_at
from ftcore.spec.sections import Spec


def find_over_ranks(checkpoints: Path, ranks: Ranks) -> Search:
    """`find_newest_whole` with the digests shared out over the ranks; the same answer on all.

    What there is to choose from is what rank 0 sees: a file that another rank does not see, on its host's view of the folder, is damage.
    """

    def verify(path: Path, entries: tuple[FileEntry, ...]) -> list[str]:
        share = entries[ranks.rank :: ranks.world_size]
        # The digests of the others are worked out elsewhere, but this rank may have to read them too.
        mine = damage(path, share) + damage(path, [entry for entry in entries if entry not in share], digests=False)
        first_seen: dict[str, int] = {}
        for rank, problems in enumerate(gather_objects(mine, ranks)):
            for problem in problems:
                first_seen.setdefault(problem, rank)
        return [f"{problem} (seen by rank {rank})" if rank else problem for problem, rank in first_seen.items()]

    listing = gather_objects(list_checkpoints(checkpoints) if ranks.is_first else None, ranks)[0]
    return newest_whole(listing, verify)


def lowest_metric_over_ranks(newest: Path, ranks: Ranks) -> float | None:
    """The lowest metric_for_best_model of the checkpoints up to `newest`, as rank 0 sees them, on every rank; None where none was measured."""
    best = best_of(newest) if ranks.is_first else None
    metric = read_manifest(best).metric if best is not None else None
    return cast(float | None, gather_objects(metric, ranks)[0])


def evaluation_due_over_ranks(newest: Path, ranks: Ranks) -> bool:
    """Whether the checkpoint was saved with an evaluation still due, as rank 0 sees it, on every rank."""
    return bool(gather_objects(read_manifest(newest).evaluation_due if ranks.is_first else None, ranks)[0])


def _emit_note(text: str) -> None:
    emit("note", text=text)


@torch.no_grad()
def load_checkpoint(engine: Engine, found: Found, *, spec: Spec, base: ModelSource, tell: Callable[[str], None] = _emit_note) -> Cursor:
    """Restores parameters, moments, buffers and random state; returns the cursor.

    With the world size the checkpoint was written with, everything is bit-equal; with another, random
    states are seeded anew from the seed, the update and the rank; so is the accelerator's where the run
    went on to another kind of device, which `tell` hears of on rank 0. Raises CheckpointError before anything
    is changed when the checkpoint belongs to another base model, method or optimizer.
    """
    _check_same_run(engine, found, spec, base)
    cursor = Cursor.from_json((found.path / layout.CURSOR).read_text(encoding="utf-8"))
    reader = StateReader.open(found.path, found.manifest)
    slices = slices_to_load(engine)
    for owned in slices:
        emit_at("load")
        _load_slice(engine, reader, owned)
    _load_codes(engine, reader, [owned for owned in slices if reader.is_coded(owned.name)])
    publish_masters(engine)
    set_loss_scale_state(engine, found.manifest.loss_scale)
    buffers = load_file(found.path / layout.BUFFERS)
    for name, buffer in engine.module.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])
    note = _restore_rng(engine, found, spec, cursor)
    if note and engine.ranks.is_first:
        tell(note)
    return cursor


def _load_slice(engine: Engine, reader: StateReader, owned: OwnedSlice) -> None:
    name, start, numel = owned.name, owned.start, owned.numel
    owned.view(owned.flat).copy_(reader.read(MASTER, name, start, numel))
    moments = reader.moments(name)
    prepare_state(engine, owned, moments, reader.scalars.get(name, {}))
    state = optimizer_state(engine, owned)
    for key in moments:
        owned.view(state[key]).copy_(reader.read(key, name, start, numel))
    for key in reader.whole.get(name, []):
        state_of(engine, owned)[key] = reader.read_whole(key, name).to(owned.flat.device)


def _load_codes(engine: Engine, reader: StateReader, slices: list[OwnedSlice]) -> None:
    """Moments in codes, a tensor of the optimizer after the other: a block may take in several slices."""
    pieces: dict[int, list[CodedPiece]] = {}
    for owned in slices:
        emit_at("load")
        pieces.setdefault(id(owned.flat), []).extend(reader.coded_pieces(owned.name, owned.start, owned.numel, offset=owned.offset))
    for flat, owned in {id(owned.flat): owned for owned in slices}.items():
        fill(prepare_codes(engine, owned), pieces[flat])


def _check_same_run(engine: Engine, found: Found, spec: Spec, base: ModelSource) -> None:
    manifest, where = found.manifest, str(found.path)
    if manifest.base["digest"] != base.digest:
        raise CheckpointError(
            f"the checkpoint belongs to base model {manifest.base['name']} with digest {manifest.base['digest'][:12]}, the model now has {base.digest[:12]}",
            where=where,
            fix="put the base model back as it was, or start a new run",
        )
    if manifest.optimizer != spec.optimizer.type:
        held = f"the checkpoint holds {manifest.optimizer} state, the spec says {spec.optimizer.type}"
        raise CheckpointError(held, where=where, fix="use the same optimizer")
    saved, now = manifest.parameters, trained_shapes(engine)
    different = sorted(name for name in saved.keys() | now.keys() if saved.get(name) != now.get(name))
    if different:
        raise CheckpointError(
            f"{len(different)} trained parameters differ from the checkpoint's, the first is {different[0]}: "
            f"{saved.get(different[0])} saved, {now.get(different[0])} now",
            where=where,
            fix="resume with the method the run was started with",
        )


def _restore_rng(engine: Engine, found: Found, spec: Spec, cursor: Cursor) -> str:
    ranks = engine.ranks
    # First, so that no state which the checkpoint does not hold repeats the numbers of the run's beginning.
    seed_all(spec.train.seed, cursor.next_update, ranks.rank)
    if found.manifest.world_size != ranks.world_size:
        return ""
    return load_rng(layout.rank_path(found.path, ranks.rank) / layout.RNG)


def seed_all(seed: int, update: int, rank: int) -> None:
    """Seeds python, numpy and torch for one rank at one update: dropout differs between ranks and between restarts."""
    words = np.random.SeedSequence([seed, update, rank]).generate_state(2)
    random.seed(int(words[0]))
    np.random.seed(int(words[0]))
    torch.manual_seed(int(words[1]))
