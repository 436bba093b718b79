"""A measured speed that a simulation is tied to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.errors import CheckpointError
from ftcore.spec.scale_result import read_scale

FIX = "name scale.json (ftlaunch scale), pilot.json (ftlaunch pilot), or a run folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """What was measured with the same spec on the same kind of accelerator."""

    ranks: int
    stage: int
    tokens_per_s: float
    """Over all its ranks."""
    origin: str
    """The file it is from."""

    @property
    def words(self) -> str:
        """For the head of the table."""
        return f"{self.tokens_per_s:,.0f} tokens/s measured on {self.ranks} rank{'s' if self.ranks > 1 else ''} ({self.origin})"


def read_anchor(path: Path) -> Anchor:
    """The measured point with the fewest ranks in a file or folder. Raises CheckpointError when there is none."""
    result = read_scale(path)
    points = [point for point in result.measured if point.tokens_per_s]
    if not points:
        raise CheckpointError(f"{path} has no measured point", where="--measured", fix=FIX)
    point = min(points, key=lambda each: each.ranks)
    return Anchor(ranks=point.ranks, stage=point.stage, tokens_per_s=float(point.tokens_per_s or 0), origin=str(path))
