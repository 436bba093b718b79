"""Measured speeds that a simulation is tied to: of a scaling test, a pilot, or any run."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ftcore.spec.errors import CheckpointError, Problem, SpecError
from ftcore.spec.resolved import ResolvedSpec, load_resolved
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_record import RunRecord, covered, read_run
from ftcore.spec.scale_result import ScaleDir, read_scale

WHERE = "--measured"
FIX = "name scale.json (ftlaunch scale), pilot.json (ftlaunch pilot), or the folder of one of them or of a run"
PILOT = "pilot.json"
WARM_UP = 2
"""Updates at the beginning of a run that say nothing of speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """What was measured with the same spec on the same kind of accelerator."""

    ranks: int
    stage: int
    tokens_per_s: float
    """Over all its ranks."""
    on_cpu: bool
    model: str
    method: str
    """Empty: the file does not say."""
    origin: str
    """The file it is from."""
    precision: str = ""
    """train.precision; empty: not known."""
    threads: int | None = None
    """Of each rank; None: not known."""
    global_batch_size: int | None = None
    """Of its updates, as `tokens_per_update`; both None: not known."""
    tokens_per_update: int | None = None

    @property
    def words(self) -> str:
        """For the head of the table."""
        return f"{self.tokens_per_s:,.0f} tokens/s on {self.ranks} rank{'s' if self.ranks > 1 else ''}, stage {self.stage}"


def read_anchors(path: Path) -> tuple[Anchor, ...]:
    """All measured points of a file or folder, at least one. Raises CheckpointError when there is none, or it can't be read."""
    if (path / ScaleDir(path).result.name).is_file() or path.name == ScaleDir(path).result.name:
        found = _of_scale(path)
    elif (path / PILOT).is_file() or path.name == PILOT:
        found = _of_pilot(path if path.name == PILOT else path / PILOT)
    elif path.is_dir() and RunDir(path).resolved.is_file():
        found = _of_run(path)
    else:
        raise CheckpointError(f"{path} holds nothing measured", where=WHERE, fix=FIX)
    if not found:
        raise CheckpointError(f"{path} holds no measured speed", where=WHERE, fix=FIX)
    return found


def _of_scale(path: Path) -> tuple[Anchor, ...]:
    result = read_scale(path)
    points = [point for point in result.measured if point.tokens_per_s]
    # Ranks that shared a core say nothing of ranks that have one.
    own = [point for point in points if not point.oversubscribed] or points
    return tuple(
        Anchor(
            ranks=point.ranks,
            stage=point.stage,
            tokens_per_s=float(point.tokens_per_s or 0.0),
            on_cpu=point.accelerators is None,
            model=result.model,
            method=result.method,
            origin=str(path),
            precision=result.precision,
            threads=point.threads,
            global_batch_size=point.global_batch_size,
            tokens_per_update=point.tokens_per_update,
        )
        for point in own
    )


def _of_pilot(file: Path) -> tuple[Anchor, ...]:
    run_dir = RunDir(file.parent)
    try:
        facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        speed, on_cpu = float(facts["measured"]["tokens_per_s"]), facts["accelerator"] == "cpu"
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{file} is no result of a pilot: {error!r}", where=WHERE, fix=FIX) from error
    return (_anchor(load_resolved(run_dir.resolved), speed, on_cpu=on_cpu, origin=file),) if 0 < speed < math.inf else ()


def _of_run(path: Path) -> tuple[Anchor, ...]:
    """The median speed of a run's updates on the ranks it ended with, the first ones left out."""
    record, resolved = read_run(path, with_ranks=False), load_resolved(RunDir(path).resolved)
    ranks = record.updates[-1].get("world_size", resolved.world_size) if record.updates else 0
    lines = [line for line in record.updates if line.get("world_size", ranks) == ranks]
    speeds = [each.tokens / each.train_s for line in lines if int(line.get("update", 0)) > WARM_UP and (each := covered(line)).train_s > 0]
    if not speeds:
        return ()
    anchor = _anchor(resolved, median(speeds), on_cpu=_is_on_cpu(record), origin=path)
    return (dataclasses.replace(anchor, ranks=int(ranks)),)


def _is_on_cpu(record: RunRecord) -> bool:
    """Where nothing was allocated on an accelerator the ranks computed on cores."""
    return not any(isinstance(line.get("allocated_bytes"), int) for line in record.updates)


def _anchor(resolved: ResolvedSpec, speed: float, *, on_cpu: bool, origin: Path) -> Anchor:
    spec = resolved.spec
    return Anchor(
        ranks=resolved.world_size,
        stage=spec.zero.stage,
        tokens_per_s=speed,
        on_cpu=on_cpu,
        model=spec.model.model_name_or_path,
        method=spec.method.type,
        origin=str(origin),
        precision=spec.train.precision,
        global_batch_size=spec.batch.global_batch_size,
        tokens_per_update=spec.batch.tokens_per_update,
    )


def require_like(anchors: tuple[Anchor, ...], resolved: ResolvedSpec, *, on_cpu: bool, accelerator: str) -> None:
    """Raises SpecError when any was measured with another model, method or precision, or on another kind of machine: its speed says nothing of this one."""
    told = {each.origin: differs for each in anchors if (differs := _differences(each, resolved, on_cpu=on_cpu, accelerator=accelerator))}
    if told:
        fix = "name a measurement of this spec on such an accelerator, or leave --measured out"
        raise SpecError([Problem(what=f"{origin} was measured otherwise: {'; '.join(each)}", where=WHERE, fix=fix) for origin, each in told.items()])


def _differences(anchor: Anchor, resolved: ResolvedSpec, *, on_cpu: bool, accelerator: str) -> list[str]:
    spec, differs = resolved.spec, []
    if anchor.model != spec.model.model_name_or_path:
        differs.append(f"the model was {anchor.model}, here it is {spec.model.model_name_or_path}")
    if anchor.method and anchor.method != spec.method.type:
        differs.append(f"the method was {anchor.method}, here it is {spec.method.type}")
    if anchor.precision and anchor.precision != spec.train.precision:
        differs.append(f"the precision was {anchor.precision}, here it is {spec.train.precision}")
    if anchor.on_cpu != on_cpu:
        differs.append(f"it ran on {'CPU cores' if anchor.on_cpu else 'accelerators'}, and {accelerator} is to be simulated")
    return differs


def nearest(anchors: tuple[Anchor, ...], ranks: int, stage: int) -> Anchor:
    """The anchor of that stage, if there is one, whose number of ranks is nearest by ratio; of two the one with fewer."""
    own = [each for each in anchors if each.stage == stage] or list(anchors)
    return min(own, key=lambda each: (abs(math.log(each.ranks / ranks)), each.ranks))
