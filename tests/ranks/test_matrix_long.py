"""Fifty updates at the corners of the matrix: the losses of plain torch at each update, and its parameters at the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource
from ftcore.spec.sections import Spec
from tests.ranks.jobs import train_runs
from tests.ranks.matrix import reference_curves
from tests.ranks.pool import RankPool
from tests.ranks.reference import Curve, relative_gap
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]
UPDATES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Corner:
    """One run of fifty updates over samples of 3 to 40 tokens."""

    world_size: int
    stage: int
    layout: str
    budget: int
    """micro_batch_tokens: 40 holds the longest sample alone, 320 a whole update."""
    method: str = "full"
    coalesce: bool = False

    def spec(self) -> Spec:
        """AdamW with clipping and a cosine schedule after warm-up."""
        spec = make_spec(self.stage, updates=UPDATES, budget=self.budget, method=self.method, coalesce=self.coalesce)
        spec = with_section(spec, "method", lora_dropout=0.0)
        return with_section(spec, "batch", layout=self.layout)


CORNERS = (
    Corner(world_size=1, stage=0, layout="packed", budget=320),
    Corner(world_size=1, stage=3, layout="padded", budget=40),
    Corner(world_size=2, stage=2, layout="packed", budget=40, coalesce=True),
    Corner(world_size=2, stage=3, layout="packed", budget=40, method="lora"),
    Corner(world_size=2, stage=0, layout="padded", budget=80, method="lora"),
    Corner(world_size=4, stage=1, layout="packed", budget=40),
)


@pytest.fixture(scope="module")
def references(small: Small) -> dict[str, tuple[Curve, Curve]]:
    """Method -> curves in float32 and in float64."""
    samples = SampleSet.open(small[1])
    methods = {corner.method: corner.spec() for corner in CORNERS}
    return {method: reference_curves(small[0], samples, spec) for method, spec in methods.items()}


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_fifty_updates(world_size: int, pool: RankPool, small: Small, references: dict[str, tuple[Curve, Curve]], tmp_path: Path) -> None:
    corners = [corner for corner in CORNERS if corner.world_size == world_size]
    runs = [(str(tmp_path / str(index)), corner.spec()) for index, corner in enumerate(corners)]
    trained = pool.run(train_runs, world_size, runs, *small, logs=tmp_path / "logs")[0]
    for corner, result in zip(corners, trained, strict=True):
        single, double = references[corner.method]
        assert len(result.losses) == UPDATES
        assert result.losses == pytest.approx(double.losses, rel=1e-5), corner
        assert result.norms == pytest.approx(double.norms, rel=1e-4), corner
        gap, rounding = relative_gap(result.change, double.change), relative_gap(single.change, double.change)
        assert gap <= 10 * rounding, (corner, gap, rounding)
