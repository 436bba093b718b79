"""The result of a scaling test on disk: read by every verb that counts with measured speeds, written whole after each point."""

from __future__ import annotations

from ftcore.spec.scale_result import Agreement, ScaleDir, ScalePoint, ScaleResult, read_scale
from launcher.run_folder import write_files

__all__ = ["Agreement", "ScaleDir", "ScalePoint", "ScaleResult", "read_result", "write_result"]

read_result = read_scale
"""The result in a SCALE folder or its scale.json. Raises CheckpointError when it is missing or damaged."""


def write_result(folder: ScaleDir, result: ScaleResult) -> None:
    """Keeps the result: a reader sees the old one or this one. Raises CheckpointError when it can't be written."""
    write_files({folder.result: result.to_json()})
