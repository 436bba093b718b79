"""How far the parameters of one checkpoint lie from those of another, measured by how far training has moved them."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

from ftcore.checkpoint.layout import checkpoint_path
from ftcore.checkpoint.manifest import read_manifest
from ftcore.checkpoint.read import StateReader
from ftcore.spec.errors import CheckpointError
from ftcore.spec.resolved import build


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGap:
    """‖p - p_ref‖ / ‖p_ref - p_start‖; infinity where training moved nothing and p differs all the same."""

    overall: float
    """Over all trained parameters."""
    largest: float
    """Of the parameter where it is largest."""
    name: str
    """That parameter."""
    moved: float
    """‖p_ref - p_start‖ over all trained parameters."""

    def to_json(self) -> str:
        """One JSON object; infinities are JSON's own extension in Python."""
        return json.dumps(dataclasses.asdict(self)) + "\n"


def parameter_gap(reference: Path, split: Path, updates: int) -> ParameterGap:
    """The gap after `updates` updates between two folders of checkpoints, of which the reference's also holds the start.

    Reads one parameter at a time. Raises CheckpointError when the two don't hold the same parameters.
    """
    start, end, other = (_open(folder, update) for folder, update in ((reference, 0), (reference, updates), (split, updates)))
    if other.manifest.parameters != end.manifest.parameters:
        fix = "start the check again: ftlaunch verify-loss"
        raise CheckpointError("it does not train the parameters that the reference trains", where=str(split), fix=fix)
    apart = moved = 0.0
    largest, where = -1.0, ""
    for name in end.manifest.parameters:
        reached = end.parameter(name).double()
        gap_squared = float((other.parameter(name).double() - reached).square().sum())
        move_squared = float((reached - start.parameter(name).double()).square().sum())
        apart, moved = apart + gap_squared, moved + move_squared
        gap = _relative(gap_squared, move_squared)
        if gap > largest or math.isnan(gap):
            largest, where = gap, name
    return ParameterGap(overall=_relative(apart, moved), largest=largest, name=where, moved=math.sqrt(moved))


def read_gap(path: Path) -> ParameterGap:
    """What `ParameterGap.to_json` wrote. Raises CheckpointError when it is missing or damaged."""
    try:
        return build(ParameterGap, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"can't read a split's gap: {error}", where=str(path), fix="start the check again: ftlaunch verify-loss") from error


def _relative(gap_squared: float, move_squared: float) -> float:
    if move_squared == 0.0:
        return 0.0 if gap_squared == 0.0 else math.inf
    return math.sqrt(gap_squared / move_squared)


def _open(checkpoints: Path, update: int) -> StateReader:
    path = checkpoint_path(checkpoints, update)
    return StateReader.open(path, read_manifest(path))
