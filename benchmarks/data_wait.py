"""How long the ranks wait for their micro-steps, and for the first one of a run that goes on: `python -m benchmarks.data_wait [--updates N]`.

wait   Two ranks on this machine, one thread each, fp32, the Llama of benchmarks.core_model. The loop with 0, 1 and 2 updates put together ahead, in turns
       update by update over the same samples; the losses must be equal. The share is seconds waited of seconds trained, of the rank that waited longer.
row    One process: putting a micro-step of 40 samples with 8,000 tokens together.
seek   One process: the updates of a long run are worked out and one is put together, at the beginning, in the middle and at 99 %. Samples read are counted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
import time
import timeit
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.core_model import make_spec, open_job, save_model, write_random_samples, write_run
from benchmarks.two_ranks import RANKS, RESULT, run_on_ranks
from ftcore import dist
from ftcore.batch.collate import collate
from ftcore.batch.cursor import Cursor
from ftcore.batch.window import UpdateSequence
from ftcore.data.cache import Counts, Sample, SampleSet, write_samples
from ftcore.data.mix import SampleMix
from ftcore.dist import Ranks
from ftcore.feed.layout import Layout
from ftcore.feed.planned import PlannedFeeder
from ftcore.run import build_engine
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import BatchSection, TrainSection
from ftcore.train.loop import Trainer

AHEAD = (0, 1, 2)
LONG_SAMPLES, LONG_EPOCHS = 200_000, 30
AIM = 0.01


class CountedMix(SampleMix):
    """Counts the samples that are read."""

    reads = 0

    def sample(self, index: int) -> Sample:
        self.reads += 1
        return super().sample(index)


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_wait", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=20, help="updates of each side; the first two warm up")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ftlaunch-wait-") as name:
        folder = Path(name)
        save_model(folder / "model")
        write_random_samples(folder / "samples.arrow", shortest=32, longest=96)
        print_waits(run_on_ranks(run_sides, folder, given.updates))
        print_rows()
        print_seeks(folder)


def run_sides(ranks: Ranks, folder: Path, updates: int) -> None:
    """Trains every side; rank 0 writes FOLDER/result.json."""
    trainers = {ahead: make_trainer(folder, ahead, updates, ranks) for ahead in AHEAD}
    for update in range(updates):
        for trainer in trainers.values():
            dist.barrier()
            trainer.train_update(update)
    waits = {}
    for ahead, trainer in trainers.items():
        trainer.close()
        mine = [json.loads(line) for line in trainer.job.run_dir.rank_metrics(ranks.rank).read_text().splitlines()]
        waits[ahead] = dist.gather_objects([line["data_wait_seconds"] for line in mine], ranks)
    if ranks.is_first:
        lines = {ahead: [json.loads(line) for line in trainer.job.run_dir.metrics.read_text().splitlines()] for ahead, trainer in trainers.items()}
        result = {str(ahead): {"waits": waits[ahead], "seconds": [line["seconds"] for line in lines[ahead]]} for ahead in AHEAD}
        losses = {ahead: [line["loss"] for line in lines[ahead]] for ahead in AHEAD}
        if any(losses[ahead] != losses[0] for ahead in AHEAD):
            raise SystemExit("the sides did not train the same: no result")
        (folder / RESULT).write_text(json.dumps(result))
    dist.barrier()
    dist.stop()
    os._exit(0)


def make_trainer(folder: Path, ahead: int, updates: int, ranks: Ranks) -> Trainer:
    """A loop of its own, with a log every update."""
    spec = make_spec(stage=2, coalesce=False, samples=32, budget=256, updates=updates)
    spec = dataclasses.replace(spec, logging=dataclasses.replace(spec.logging, logging_steps=1), data=dataclasses.replace(spec.data, prefetch_updates=ahead))
    run = folder / f"ahead_{ahead}"
    if ranks.is_first:
        write_run(run, spec, RANKS)
    dist.barrier()
    job = dataclasses.replace(open_job(run, spec, folder / "model", folder / "samples.arrow"), run_dir=RunDir(run))
    engine = build_engine(job, ranks)
    engine.train()
    return Trainer(engine, job, Cursor.at_start(job.data, spec.train.seed))


def print_waits(result: dict[str, Any]) -> None:
    """A line for each number of updates ahead."""
    print("| updates ahead | wait an update, median | largest | share of the update | aim |\n|---|---|---|---|---|")
    for ahead, of_side in result.items():
        waits = [max(of_update) for of_update in zip(*of_side["waits"], strict=True)][2:]
        share = sum(waits) / sum(of_side["seconds"][2:])
        verdict = "" if ahead == "0" else f"1 %: {'met' if share <= AIM else '**missed**'}"
        print(f"| {ahead} | {1e3 * median(waits):.3f} ms | {1e3 * max(waits):.3f} ms | {share:.4%} | {verdict} |")


def print_rows() -> None:
    """A line for each layout."""
    random = np.random.default_rng(4)
    lengths = random.integers(100, 301, size=40)
    samples = [Sample(ids=np.ones(length, dtype=np.int32), spans=np.array([[length // 2, length]], dtype=np.int32), row=1) for length in lengths]
    print(f"\n| layout | {lengths.sum():,} tokens of {len(samples)} samples put together in |\n|---|---|")
    for layout in ("packed", "padded"):
        seconds = min(timeit.repeat(lambda layout=layout: collate(samples, layout), number=50, repeat=5)) / 50  # type: ignore[misc]
        print(f"| {layout} | {1e3 * seconds:.2f} ms |")


def print_seeks(folder: Path) -> None:
    """A line for each way to count an update and each position."""
    random = np.random.default_rng(3)
    ids = np.split(np.ones(LONG_SAMPLES * 32, dtype=np.int32), LONG_SAMPLES)
    spans = [[(int(start), 32)] for start in random.integers(1, 31, size=LONG_SAMPLES)]
    counts = Counts(rows=LONG_SAMPLES, tokens=32 * LONG_SAMPLES, supervised_tokens=sum(end - start for [(start, end)] in spans))
    write_samples(folder / "long.arrow", ids, spans, list(range(1, LONG_SAMPLES + 1)), counts)
    print("\n| updates are counted in | run | first update | seconds | samples read |\n|---|---|---|---|---|")
    for kind, batch in (("samples", BatchSection(global_batch_size=64)), ("tokens", BatchSection(global_batch_size=None, tokens_per_update=2048))):
        for share in (0.0, 0.5, 0.99):
            mix = CountedMix({"train": SampleSet.open(folder / "long.arrow")})
            started = time.perf_counter()
            sequence = UpdateSequence(mix, batch=batch, train=TrainSection(num_train_epochs=LONG_EPOCHS, seed=1))
            layout = Layout(micro_batch_tokens=1024, attention_share=0.001)
            feeder = PlannedFeeder(mix, sequence, layout, Ranks(0, RANKS, 0, torch.device("cpu")))
            feeder.next(int(share * sequence.total_updates))
            print(f"| {kind} | {sequence.total_updates:,} updates | at {share:.0%} | {time.perf_counter() - started:.3f} | {mix.reads} |")


if __name__ == "__main__":
    main()
