"""What measuring phases costs: `OMP_NUM_THREADS=1 python -m benchmarks.phases [--updates 41]`.

Two ranks on this machine, one thread each, fp32, the model of benchmarks/core.py. Two loops over the same micro-steps, one with logging.phases true and one
with false, take turns update by update in one process group; their losses must be equal, digit for digit, or there is no ratio. The first update of each
warms up. A ratio is the median over updates of the ratio within an update, of processor seconds of both ranks or of the slower rank's wall seconds. With a
line of metrics an update, which is the most it can cost, and with one every ten.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.core import Side, prepared_job
from benchmarks.core_model import make_spec, save_model, write_random_samples
from benchmarks.two_ranks import RANKS, RESULT, run_on_ranks
from ftcore import dist
from ftcore.batch.cursor import Cursor
from ftcore.dist import Ranks
from ftcore.run import build_engine
from ftcore.spec.sections import LoggingSection, Spec
from ftcore.train.loop import Trainer

AIM = 0.01
CASES = {"stage 2, a line an update": (2, 1), "stage 3, a line an update": (3, 1), "stage 2, a line every 10": (2, 10)}
"""Name -> stage and logging_steps."""


def main() -> None:
    """Starts the ranks, waits for them, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.phases", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=41, help="updates of each side; the first one warms up")
    parser.add_argument("--samples", type=int, default=32, help="of an update; fewer make updates shorter, and what measuring costs a larger share")
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ftlaunch-phases-") as folder:
        parameters = save_model(Path(folder) / "model")
        write_random_samples(Path(folder) / "uneven.arrow", shortest=32, longest=96)
        (Path(folder) / "asked.json").write_text(json.dumps({"samples": given.samples, "only": given.only}))
        result = run_on_ranks(run_cases, Path(folder), given.updates)
    print_table(result, parameters)
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


def run_cases(ranks: Ranks, folder: Path, updates: int) -> None:
    """All comparisons; rank 0 writes FOLDER/result.json."""
    asked = json.loads((folder / "asked.json").read_text())
    cases = {name: case for name, case in CASES.items() if name.startswith(asked["only"])}
    result = {name: compare(name, case, folder, updates, (ranks, asked["samples"])) for name, case in cases.items()}
    if ranks.is_first:
        (folder / RESULT).write_text(json.dumps(result))
    dist.barrier()
    dist.stop()
    os._exit(0)


def compare(name: str, case: tuple[int, int], folder: Path, updates: int, work: tuple[Ranks, int]) -> dict[str, Any]:
    """Trains both sides in turns; their seconds by update, without the first. `work`: the ranks, and the samples of an update."""
    (stage, every), (ranks, samples) = case, work
    plain = make_spec(stage=stage, coalesce=False, samples=samples, budget=256, updates=updates)
    specs = {on: dataclasses.replace(plain, logging=LoggingSection(logging_steps=every, phases=on)) for on in (True, False)}
    sides = [loop_side(f"{name} {'on' if on else 'off'}", spec, folder, ranks) for on, spec in specs.items()]
    for update in range(updates):
        for side in sides if update % 2 == 0 else sides[::-1]:
            side.train(update, ranks)
    on, off = (side.losses() for side in sides)
    if not on or on != off:
        raise SystemExit(f"not the same work: losses {on} and {off}; no ratio is given")
    for side in sides:
        side.engine.deepspeed.destroy()
    return {"cpu_s": [side.cpu_s[1:] for side in sides], "wall_s": [side.wall_s[1:] for side in sides], "losses": len(on)}


def loop_side(name: str, spec: Spec, folder: Path, ranks: Ranks) -> Side:
    """Trainer.train_update; each update takes torch's collectives and gives them back, so that the other side has none of it."""
    job = prepared_job(folder, name, spec, "uneven", ranks)
    trainer = Trainer(build_engine(job, ranks), job, Cursor(order_seed=spec.train.seed, data_fingerprint=job.train.fingerprint))
    trainer.engine.train()

    def step(update: int) -> None:
        trainer.train_update(update)
        trainer._attribution.close()

    def losses() -> dict[int, float]:
        dist.barrier()
        return {line["update"]: line["loss"] for line in map(json.loads, job.run_dir.metrics.read_text().splitlines())}

    return Side(name, trainer.engine, step, losses)


def print_table(result: dict[str, Any], parameters: int) -> None:
    """Two lines a case."""
    print(f"{parameters / 1e6:.1f} M parameters, {RANKS} ranks; equal losses; aim at most {AIM:.0%} more")
    for name, found in result.items():
        print(f"{name}, {found['losses']} losses")
        for unit in ("cpu_s", "wall_s"):
            on, off = found[unit]
            ratios = sorted(a / b - 1 for a, b in zip(on, off, strict=True))
            quarter = len(ratios) // 4
            spread = f"quarters {ratios[quarter]:+.1%} to {ratios[-1 - quarter]:+.1%}"
            print(
                f"  {unit.partition('_')[0]:5} on {median(on):.3f} s, off {median(off):.3f} s an update: {median(ratios):+.2%}   {spread}, {len(ratios)} pairs"
            )


if __name__ == "__main__":
    main()
