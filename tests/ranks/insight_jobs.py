"""Rank hints on real ranks: of trained adapters, of weights that are not finite, and where they can't be written."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcore import dist
from ftcore.data.prepared import ModelSource
from ftcore.diagnostics import rank_report
from ftcore.diagnostics.adapter_rank import adapter_spectra, to_record
from ftcore.diagnostics.rank_report import write_rank_hint
from ftcore.dist import Ranks
from ftcore.engine_fields import MASTER
from ftcore.engine_state import owned_slices, trained_shapes
from ftcore.run import build_engine, restore
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.train.loop import Trainer
from tests.ranks.jobs import make_job, make_run, whole_state

SMALL_BUCKET = 300
"""Elements; an A or B of the small model has 128 to 256, so that most buckets hold one of them."""
SCALING = 2.0
"""lora_alpha 8 / r 4."""


@dataclass
class Hints:
    """What one rank saw."""

    lines: list[str] = field(default_factory=list)
    wanted: dict[str, Any] = field(default_factory=dict)
    """What adapter_rank.json must hold, from masters gathered by another way."""
    blocked: list[str] = field(default_factory=list)
    """Lines where the file can't be written."""
    spoilt: list[str] = field(default_factory=list)
    """Lines with a NaN on the last rank."""


def hint_runs(rank: int, world_size: int, folder: str, specs: dict[str, Spec], source: ModelSource, samples: str) -> dict[str, Hints]:
    ranks = dist.start()
    rank_report.BUCKET_ELEMENTS = SMALL_BUCKET
    hints = {name: _one_run(Path(folder) / name, spec, source, samples, ranks) for name, spec in specs.items()}
    dist.barrier()
    dist.stop()
    return hints


def _one_run(folder: Path, spec: Spec, source: ModelSource, samples: str, ranks: Ranks) -> Hints:
    blocked = RunDir(folder / "blocked")
    if ranks.is_first:
        make_run(folder, spec, ranks.world_size)
        blocked.path.mkdir()
        (blocked.path / "diagnostics").touch()
    dist.barrier()
    job = make_job(RunDir(folder), spec, source, samples)
    engine = build_engine(job, ranks)
    Trainer(engine, job, restore(engine, job)).run()
    hints = Hints(lines=write_rank_hint(job.run_dir, engine), blocked=write_rank_hint(blocked, engine))
    shapes, state = trained_shapes(engine), whole_state(engine)
    masters = {name: state[f"{MASTER}/{name}"].view(shape) for name, shape in shapes.items()}
    modules = {name.partition(".lora_")[0] for name in shapes}
    hints.wanted = to_record(adapter_spectra(sorted(masters.items()), {("default", module): SCALING for module in modules}))
    if ranks.rank == ranks.world_size - 1:
        owned = next(owned for owned in reversed(owned_slices(engine)) if owned.numel)
        owned.view(owned.flat).fill_(math.nan)
    hints.spoilt = write_rank_hint(job.run_dir, engine)
    engine.deepspeed.destroy()
    return hints
