"""The result of a scaling test on disk: read by every verb that counts with measured speeds, written whole after each point."""

from __future__ import annotations

from ftcore.spec.scale_result import ScaleDir, ScaleResult
from launcher.run_folder import write_files


def write_result(folder: ScaleDir, result: ScaleResult) -> None:
    """Keeps the result: a reader sees the old one or this one. Raises CheckpointError when it can't be written."""
    write_files({folder.result: result.to_json()})
