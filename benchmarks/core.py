"""The loop against a bare DeepSpeed loop, and one reduction an update against DeepSpeed's default: `python -m benchmarks.core [--updates N]`.

Two ranks on this machine, one thread each, fp32, a Llama of some million parameters. The two sides of a comparison have an engine each, made from the
same weights, and take turns update by update over the same micro-steps; losses (where one is logged) and the parameters at the end must agree, or there is
no ratio.
  overhead    Trainer.train_update, all it does included, against set_gradient_accumulation_boundary, backward and step over micro-batches made beforehand
  coalesced   8 micro-steps an update, the loop with coalesce_grad_reduction against the loop without, stages 2 and 3
The first update of each side warms up. A ratio is the median over updates of the ratio within an update, of seconds summed (CPU) or of the slower rank (wall).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.core_model import make_spec, open_job, save_model, write_random_samples, write_run
from benchmarks.two_ranks import RANKS, RESULT, run_on_ranks
from ftcore import dist
from ftcore.batch.collate import MicroBatch, collate
from ftcore.batch.cursor import Cursor
from ftcore.batch.deal import deal
from ftcore.dist import Ranks
from ftcore.engine import Engine
from ftcore.engine_state import owned_slices
from ftcore.run import build_engine
from ftcore.spec.sections import Spec
from ftcore.train.loop import Job, Trainer
from ftcore.train.loss import token_loss_sum

ACCUMULATED, SAMPLE_TOKENS = 8, 64
LOSS_TOLERANCE, PARAMETER_TOLERANCE = 1e-5, 1e-3
"""Relative, of losses and of the parameters' change: sums in another order, which each step of AdamW makes larger."""
AIMS = {"overhead": "2 % at most", "coalesced": "1.6 at least"}


@dataclass(slots=True)
class Side:
    """One of two systems that are compared."""

    name: str
    engine: Engine
    step: Callable[[int], None]
    """Trains the update of that number."""
    losses: Callable[[], dict[int, float]]
    """Update (from 1) -> loss per supervised token, of the updates whose loss is known; every rank calls it."""
    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)

    def train(self, update: int, ranks: Ranks) -> None:
        """Trains one update and notes its seconds: CPU of all ranks, wall of the slower one."""
        dist.barrier()
        cpu, wall = time.process_time(), time.perf_counter()
        self.step(update)
        spent = (time.process_time() - cpu, time.perf_counter() - wall)
        every = dist.gather_objects(spent, ranks)
        self.cpu_s.append(sum(each[0] for each in every))
        self.wall_s.append(max(each[1] for each in every))

    def masters(self) -> list[torch.Tensor]:
        """This rank's part of the fp32 parameters."""
        return [owned.view(owned.flat).detach().clone() for owned in owned_slices(self.engine)]


def main() -> None:
    """Starts the ranks and waits for them; rank 0 prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=11, help="updates of each side; the first one warms up")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ftlaunch-core-") as folder:
        parameters = save_model(Path(folder) / "model")
        write_random_samples(Path(folder) / "uneven.arrow", shortest=32, longest=96)
        write_random_samples(Path(folder) / "even.arrow", shortest=SAMPLE_TOKENS, longest=SAMPLE_TOKENS)
        result = run_on_ranks(run_sides, Path(folder), given.updates)
    print_table(result, parameters)
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


def run_sides(ranks: Ranks, folder: Path, updates: int) -> None:
    """All comparisons; rank 0 writes FOLDER/result.json."""
    result = {
        "overhead, stage 2": compare(loop_and_bare(folder, updates, ranks), updates, ranks),
        "coalesced, stage 2": compare(once_and_each(folder, 2, updates, ranks), updates, ranks),
        "coalesced, stage 3": compare(once_and_each(folder, 3, updates, ranks), updates, ranks),
    }
    if ranks.is_first:
        (folder / RESULT).write_text(json.dumps(result))
    dist.barrier()
    dist.stop()
    os._exit(0)


def loop_and_bare(folder: Path, updates: int, ranks: Ranks) -> tuple[Side, Side]:
    """Our loop, and DeepSpeed's calls alone."""
    spec = make_spec(stage=2, coalesce=False, samples=32, budget=256, updates=updates)
    ours, _ = loop_side(folder, "the loop", spec, "uneven", ranks)
    job = prepared_job(folder, "bare", spec, "uneven", ranks)
    engine = build_engine(job, ranks)
    engine.train()
    batches = [micro_steps(job, update, ranks) for update in range(updates)]
    counts = [float(job.train.weight_sums[job.sequence.window(update).sample_ids].sum()) for update in range(updates)]
    sums: list[torch.Tensor] = []

    def step(update: int) -> None:
        sums.append(bare_update(engine, batches[update], ranks.world_size / counts[update]))

    def losses() -> dict[int, float]:
        totals = dist.sum_over_ranks([float(each) for each in sums], ranks)
        return {update + 1: total / counts[update] for update, total in enumerate(totals)}

    return ours, Side("bare DeepSpeed", engine, step, losses)


def once_and_each(folder: Path, stage: int, updates: int, ranks: Ranks) -> tuple[Side, Side]:
    """The loop that reduces once an update, and the one that reduces in each micro-step, as DeepSpeed does by default."""
    sides = []
    for coalesce in (True, False):
        samples = RANKS * ACCUMULATED
        spec = make_spec(stage=stage, coalesce=coalesce, samples=samples, budget=SAMPLE_TOKENS, updates=updates)
        side, job = loop_side(folder, "once an update" if coalesce else "each micro-step", spec, "even", ranks)
        if len(micro_steps(job, 0, ranks)) != ACCUMULATED:
            raise SystemExit(f"not {ACCUMULATED} micro-steps")
        sides.append(side)
    return sides[0], sides[1]


def loop_side(folder: Path, name: str, spec: Spec, samples: str, ranks: Ranks) -> tuple[Side, Job]:
    """Trainer.train_update over the spec's updates."""
    job = prepared_job(folder, f"{name} {spec.zero.stage}", spec, samples, ranks)
    trainer = Trainer(build_engine(job, ranks), job, Cursor(order_seed=spec.train.seed, data_fingerprint=job.train.fingerprint))
    trainer.engine.train()

    def losses() -> dict[int, float]:
        dist.barrier()
        return {line["update"]: line["loss"] for line in map(json.loads, job.run_dir.metrics.read_text().splitlines())}

    return Side(name, trainer.engine, trainer.train_update, losses), job


def prepared_job(folder: Path, name: str, spec: Spec, samples: str, ranks: Ranks) -> Job:
    """The job of a run folder of that name, which rank 0 makes."""
    run = folder / name.replace(" ", "_")
    if ranks.is_first:
        write_run(run, spec, ranks.world_size)
    dist.barrier()
    return open_job(run, spec, folder / "model", folder / f"{samples}.arrow")


def micro_steps(job: Job, update: int, ranks: Ranks) -> list[MicroBatch]:
    """This rank's part of an update, as the loop deals it."""
    ids, layout = job.sequence.window(update).sample_ids, job.layout
    dealt = deal(
        job.train.lengths[ids], world_size=ranks.world_size, micro_batch_tokens=layout.micro_batch_tokens, attention_share=layout.attention_share
    )
    return [collate([job.train.sample(int(ids[index])) for index in part]) for part in dealt.parts[ranks.rank]]


def bare_update(engine: Engine, batches: list[MicroBatch], weight: float) -> torch.Tensor:
    """DeepSpeed's own calls, and nothing else; returns the sum of token losses."""
    inner, total = engine.deepspeed, torch.zeros(())
    for index, batch in enumerate(batches):
        inner.set_gradient_accumulation_boundary(index == len(batches) - 1)
        loss = token_loss_sum(inner, batch)
        inner.backward(loss * weight, scale_wrt_gas=False)
        total += loss.detach()
    inner.step()
    return total


def compare(sides: tuple[Side, Side], updates: int, ranks: Ranks) -> dict[str, Any]:
    """Trains both sides in turns; their seconds by update, without the first."""
    before = sides[0].masters()
    for update in range(updates):
        for side in sides if update % 2 == 0 else sides[::-1]:
            side.train(update, ranks)
    first, second = (side.losses() for side in sides)
    logged = sorted(first.keys() & second.keys())
    if not logged or any(abs(first[update] - second[update]) > LOSS_TOLERANCE * second[update] for update in logged):
        raise SystemExit(f"not the same work: losses {[(update, first[update], second[update]) for update in logged]}; no ratio is given")
    gap = parameter_gap(before, *(side.masters() for side in sides))
    if not gap <= PARAMETER_TOLERANCE:
        raise SystemExit(f"not the same work: the parameters' changes differ by {gap:.2g} of their size; no ratio is given")
    for side in sides:
        side.engine.deepspeed.destroy()
    return {
        "sides": [side.name for side in sides],
        "cpu_s": [side.cpu_s[1:] for side in sides],
        "wall_s": [side.wall_s[1:] for side in sides],
        "losses": {update: [first[update], second[update]] for update in logged},
        "parameter_gap": gap,
    }


def parameter_gap(before: list[torch.Tensor], one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """||one - other|| / ||other - before|| over this rank's parameters."""
    difference = sum(float((a - b).square().sum()) for a, b in zip(one, other, strict=True))
    change = sum(float((b - a).square().sum()) for a, b in zip(before, other, strict=True))
    return float((difference / change) ** 0.5)


def print_table(result: dict[str, Any], parameters: int) -> None:
    """Two lines a comparison, then its ratios: second side over first."""
    print(f"{parameters / 1e6:.1f} M parameters, {RANKS} ranks; losses agree to {LOSS_TOLERANCE:g}, parameters too")
    for name, found in result.items():
        print(f"\n{name}")
        for side, cpu, wall in zip(found["sides"], found["cpu_s"], found["wall_s"], strict=True):
            print(f"  {side:18}{median(cpu):9.3f} CPU s{median(wall):9.3f} wall s an update, {len(cpu)} updates")
        kind = name.partition(",")[0]
        for unit in ("cpu_s", "wall_s"):
            first, second = found[unit]
            ratio = median(b / a for a, b in zip(first, second, strict=True))
            shown = f"{1 / ratio - 1:+.1%}" if kind == "overhead" else f"{ratio:.2f}x"
            print(f"  {kind} by {unit.partition('_')[0]:5}{shown:>9}   aim {AIMS[kind]}")


if __name__ == "__main__":
    main()
