"""Our own runs on CPU cores against the simulator: `python -m benchmarks.cpu_points [FOLDER]`. Some minutes.

Each point is launched twice, for few and for more updates; the CPU seconds of its processes between the two, over updates and ranks, are what a rank takes
for an update. CPU seconds and not wall time, since a machine of two cores is never quiet: with a core for each rank the two are the same, but for waiting.
The point with one rank is the anchor, and the others are foretold from it. Prints a table; the rows of benchmarks/cpu_points.csv are its output.
"""

from __future__ import annotations

import csv
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from launcher.memory.accelerators import find_accelerator
from launcher.memory.config_file import find_config
from launcher.memory.cost import run_data
from launcher.memory.shape import read_shape
from launcher.resolve import Options, read_and_resolve
from launcher.simulation.anchor import Anchor
from launcher.simulation.setting import Setting
from launcher.simulation.timing import tied, timed

FEW, MORE = 4, 16
"""Updates of the two launches."""
POINTS = Path(__file__).with_name("cpu_points.csv")
SPEC = """\
model: {model_name_or_path: "builtin:tiny-llama"}
data: {train: {path: "builtin:extraction/train"}, max_length: 512}
method: {type: full}
batch: {global_batch_size: 48, micro_batch_tokens: 4096}
optimizer: {learning_rate: 1e-3}
train: {max_steps: 100, precision: fp32}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPoint:
    """What one number of ranks takes."""

    stage: int
    ranks: int
    update_s: float
    """CPU seconds of a rank, on average."""


def recorded() -> list[CpuPoint]:
    """The points of the last run of this benchmark that was kept."""
    with POINTS.open(encoding="utf-8") as file:
        return [CpuPoint(stage=int(row["stage"]), ranks=int(row["ranks"]), update_s=float(row["update_s"])) for row in csv.DictReader(file)]


def launched(folder: Path, ranks: int, stage: int, updates: int) -> float:
    """CPU seconds of a launch, all its processes together. Raises CalledProcessError when it fails."""
    (folder / "hosts").write_text(f"localhost slots={ranks}\n")
    sets = [f"train.max_steps={updates}", "data.eval=null"]
    argv = [sys.executable, "-m", "launcher.cli", "--spec", "spec.yaml", "--hosts", "hosts", "--zero", str(stage), "-o", f"w{ranks}-{stage}-{updates}", *sets]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, cwd=folder, check=True, env=_environment(), stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}


def measured(folder: Path, ranks: int, stage: int) -> CpuPoint:
    """One point."""
    few, more = (launched(folder, ranks, stage, updates) for updates in (FEW, MORE))
    return CpuPoint(stage=stage, ranks=ranks, update_s=(more - few) / (MORE - FEW) / ranks)


def errors(points: list[CpuPoint]) -> dict[tuple[int, int], float]:
    """(stage, ranks) -> foretold over measured seconds, less one, of all points with more ranks than one; tied to the point of one rank of its stage."""
    setting = _setting()
    found = {}
    for point in points:
        if point.ranks > 1:
            first = next(each for each in points if (each.stage, each.ranks) == (point.stage, 1))
            foretold = _foretold(setting, first, point)
            found[point.stage, point.ranks] = foretold / point.update_s - 1
    return found


def _setting() -> Setting:
    """The spec above on one core a rank; its data as the launcher knows them unprepared."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "spec.yaml"
        file.write_text(SPEC)
        resolved = read_and_resolve(Options(spec_path=file)).resolved
    shape = read_shape(find_config(resolved.spec.model))
    return Setting(resolved=resolved, shape=shape, accelerator=find_accelerator("cpu"), data=run_data(resolved), gpus_per_node=8, cores_per_rank=1.0)


def _foretold(setting: Setting, first: CpuPoint, point: CpuPoint) -> float:
    """Seconds of a rank but for waiting, which takes no CPU."""
    one = timed(setting, first.ranks, first.stage)
    anchor = Anchor(
        ranks=1,
        stage=first.stage,
        tokens_per_s=one.portion.tokens / first.update_s,
        on_cpu=True,
        model=setting.resolved.spec.model.model_name_or_path,
        method="full",
        origin="benchmarks/cpu_points.csv",
    )
    found = tied(setting, timed(setting, point.ranks, point.stage), anchor)
    return found.total_s - found.idle_s


def main() -> None:
    """Measures, and prints rows for cpu_points.csv."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(made)
        folder.mkdir(exist_ok=True)
        (folder / "spec.yaml").write_text(SPEC)
        found = []
        print("stage,ranks,update_s", flush=True)
        for stage in (1, 3):
            for ranks in (1, 2):
                point = measured(folder, ranks, stage)
                found.append(point)
                print(f"{point.stage},{point.ranks},{point.update_s:.4f}", flush=True)
    for (stage, ranks), error in errors(found).items():
        print(f"stage {stage}, {ranks} ranks foretold from one: {error:+.1%}")


if __name__ == "__main__":
    sys.exit(main())
