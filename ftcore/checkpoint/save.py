"""Write a checkpoint: every rank its slices, aside; then the manifest; then one rename."""

from __future__ import annotations

import json
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from ftcore.batch.cursor import Cursor
from ftcore.checkpoint import layout
from ftcore.checkpoint.manifest import FileEntry, Manifest, describe_file
from ftcore.checkpoint.retention import prune, set_aside
from ftcore.checkpoint.rng import save_rng
from ftcore.data.prepared import ModelSource
from ftcore.dist import gather_objects
from ftcore.engine import Engine
from ftcore.engine_fields import MASTER
from ftcore.engine_state import optimizer_state, owned_slices, trained_shapes
from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import fsync_path, write_atomic
from ftcore.spec.sections import Spec

PACKAGES = ("torch", "deepspeed", "transformers", "peft", "safetensors")


def save_checkpoint(engine: Engine, checkpoints: Path, *, cursor: Cursor, spec: Spec, base: ModelSource) -> Path:
    """Saves the state after `cursor.next_update` updates and returns its folder; every rank must call it.

    Older checkpoints beyond `checkpoint.save_total_limit` are removed afterwards. When any rank fails, all
    raise CheckpointError, and what was saved earlier is untouched.
    """
    ranks = engine.ranks
    partial = layout.partial_path(checkpoints, cursor.next_update)
    if ranks.is_first:
        _agree(ranks, _try(lambda: _begin(partial)))
    else:
        _agree(ranks, None)
    written = _agree(ranks, _try(lambda: _write_rank(engine, partial)))
    final = layout.checkpoint_path(checkpoints, cursor.next_update)
    if ranks.is_first:
        files = [entry for rank_files in written for entry in rank_files]
        _agree(ranks, _try(lambda: _commit(engine, partial, final, files=files, cursor=cursor, spec=spec, base=base)))
    else:
        _agree(ranks, None)
    return final


def _try(action: Any) -> Any:
    """The action's value, or the OSError it met: a rank alone must not leave the others waiting."""
    try:
        return action()
    except OSError as error:
        return error


def _agree(ranks: Any, outcome: Any) -> list[Any]:
    """Every rank's outcome; raises CheckpointError on all ranks when one is an error."""
    outcomes = gather_objects(outcome, ranks)
    for rank, value in enumerate(outcomes):
        if isinstance(value, OSError):
            raise CheckpointError(
                f"rank {rank} could not save: {value}",
                where="checkpoint",
                fix="free disk space or correct the folder's permissions, then ftlaunch --resume; earlier checkpoints are untouched",
            )
    return outcomes


def _begin(partial: Path) -> None:
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)


def _write_rank(engine: Engine, partial: Path) -> list[FileEntry]:
    folder = layout.rank_path(partial, engine.ranks.rank)
    folder.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    slices: dict[str, list[int]] = {}
    scalars: dict[str, dict[str, float]] = {}
    for owned in owned_slices(engine):
        slices[owned.name] = [owned.start, owned.numel]
        tensors[f"{MASTER}/{owned.name}"] = _for_file(owned.view(owned.flat))
        for key, value in optimizer_state(engine, owned).items():
            if torch.is_tensor(value) and value.numel() == owned.flat.numel() and value.dim() > 0:
                tensors[f"{key}/{owned.name}"] = _for_file(owned.view(value))
            else:
                scalars.setdefault(owned.name, {})[key] = float(value)
    _save_tensors(tensors, folder / layout.STATE)
    write_atomic(folder / layout.INDEX, json.dumps({"slices": slices, "scalars": scalars}))
    save_rng(folder / layout.RNG)
    fsync_path(folder)
    return [describe_file(partial, folder / name) for name in (layout.STATE, layout.INDEX, layout.RNG)]


def _for_file(view: torch.Tensor) -> torch.Tensor:
    # Cloned, because safetensors refuses tensors that share storage, as slices of a flat partition do.
    return view.detach().to("cpu", copy=True).contiguous()


def _commit(engine: Engine, partial: Path, final: Path, *, files: list[FileEntry], cursor: Cursor, spec: Spec, base: ModelSource) -> None:
    write_atomic(partial / layout.CURSOR, cursor.to_json())
    buffers = {name: _for_file(value) for name, value in engine.module.named_buffers()}
    _save_tensors(buffers, partial / layout.BUFFERS)
    Manifest(
        update=cursor.next_update,
        world_size=engine.ranks.world_size,
        zero_stage=engine.stage,
        precision=spec.train.precision,
        optimizer=spec.optimizer.type,
        base={"name": base.name, "revision": base.revision, "digest": base.digest},
        parameters=trained_shapes(engine),
        versions={package: version(package) for package in PACKAGES},
        files=(*files, describe_file(partial, partial / layout.CURSOR), describe_file(partial, partial / layout.BUFFERS)),
    ).write(partial)
    if final.exists():
        # Done before, found damaged on a resume, and now done again.
        set_aside(final)
    os.rename(partial, final)
    fsync_path(final.parent)
    write_atomic(final.parent / layout.LATEST, final.name + "\n")
    prune(final, keep=spec.checkpoint.save_total_limit)


def _save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Writes the file durably. Raises OSError, also for what safetensors calls its own error (a full disk)."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(f"{path.name}: {error}") from error
    fsync_path(path)
