"""Scalars for TensorBoard: event files in RUN/tensorboard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FLUSH_S = 10
"""How long numbers are held before they are in the file."""


class TensorBoardWriter:
    """One event file more in the folder; of an earlier attempt's, TensorBoard shows the updates only that are not done again."""

    def __init__(self, folder: Path, *, next_update: int) -> None:
        # Takes a second to import.
        from torch.utils.tensorboard import SummaryWriter

        purge = next_update + 1 if any(folder.glob("events.out.tfevents.*")) else None
        self._writer = SummaryWriter(str(folder), purge_step=purge, flush_secs=FLUSH_S)

    def write(self, update: int, scalars: Mapping[str, float]) -> None:
        """Numbers of the state after `update` updates."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, global_step=update)

    def close(self, *, failed: bool) -> None:
        """Writes down what is held."""
        self._writer.close()
