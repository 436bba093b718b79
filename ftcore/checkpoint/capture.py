"""What a rank puts into a checkpoint: its slices where they lie, and everything small as bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import save as safetensors_bytes

from ftcore.batch.cursor import Cursor
from ftcore.checkpoint import layout
from ftcore.checkpoint.manifest import FileEntry, Manifest
from ftcore.checkpoint.rng import capture_rng
from ftcore.checkpoint.writer import TensorEntry, in_file_order
from ftcore.data.prepared import ModelSource
from ftcore.engine import Engine
from ftcore.engine_state import loss_scale_state, slice_states, trained_shapes
from ftcore.spec.sections import Spec

PACKAGES = ("torch", "deepspeed", "transformers", "peft", "safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One rank's part of a checkpoint."""

    entries: list[TensorEntry]
    """Tensors of its state file, in file order."""
    tensors: list[torch.Tensor]
    """Their values in the same order: views of what the optimizer steps, not copies."""
    files: dict[str, bytes]
    """Path within the checkpoint -> content."""


def capture(engine: Engine, cursor: Cursor) -> Capture:
    """This rank's state after `cursor.next_update` updates. Raises CheckpointError for optimizer state that slices can't carry."""
    slices: dict[str, list[int]] = {}
    whole: dict[str, list[str]] = {}
    scalars: dict[str, dict[str, float | int]] = {}
    phases: dict[str, int] = {}
    tensors: dict[str, torch.Tensor] = {}
    for state in slice_states(engine):
        name = state.owned.name
        slices[name] = [state.owned.start, state.owned.numel]
        tensors |= {f"{field}/{name}": value for field, value in (state.fields | state.whole).items()}
        if state.phase is not None:
            phases[name] = state.phase
        if state.whole:
            whole[name] = sorted(state.whole)
        if state.scalars:
            scalars[name] = state.scalars
    entries = in_file_order(TensorEntry(name=name, dtype=value.dtype, shape=tuple(value.shape)) for name, value in tensors.items())
    folder = layout.rank_path(Path(), engine.ranks.rank)
    files = {
        str(folder / layout.INDEX): json.dumps({"slices": slices, "scalars": scalars, "phases": phases, "whole": whole}).encode(),
        str(folder / layout.RNG): capture_rng().encode(),
    }
    if engine.ranks.is_first:
        # Copied: unlike masters, a model's buffers may change in a forward pass.
        buffers = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in engine.module.named_buffers()}
        files |= {layout.CURSOR: cursor.to_json().encode(), layout.BUFFERS: safetensors_bytes(buffers)}
    return Capture(entries=entries, tensors=[tensors[entry.name] for entry in entries], files=files)


def describe(engine: Engine, cursor: Cursor, *, spec: Spec, base: ModelSource, metric: float | None, evaluation_due: bool = False) -> Manifest:
    """The manifest of that state, still without files."""
    return Manifest(
        update=cursor.next_update,
        world_size=engine.ranks.world_size,
        zero_stage=engine.stage,
        precision=spec.train.precision,
        optimizer=spec.optimizer.type,
        base={"name": base.name, "revision": base.revision, "digest": base.digest},
        parameters=trained_shapes(engine),
        versions={package: version(package) for package in PACKAGES},
        files=tuple[FileEntry, ...](),
        metric=metric,
        evaluation_due=evaluation_due,
        loss_scale=loss_scale_state(engine),
    )
