"""How often a rank that is slow on purpose is named with its phase, and whether balanced runs name nobody: `python -m benchmarks.slow_rank [--trials 10]`.

Each trial trains a small Llama for some updates on 2, then 4 ranks of this machine, one thread each, with a sleep on one rank (another one each time) at one
place, or nowhere; all but those of `dealt` save and evaluate every few updates. A trial is right when there is a slow_rank finding and every one names that
rank and that phase, or, of a balanced run, when there is none. `dealt` has no sleep but data that can't be dealt evenly, as many samples an update as there
are ranks; its finding's cause must be data.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.core_model import make_spec, open_job, write_run
from benchmarks.planted import PLACES, plant
from benchmarks.two_ranks import RESULT, run_on_ranks
from ftcore import dist
from ftcore.batch.cursor import Cursor
from ftcore.data.cache import Counts, SampleSet, write_samples
from ftcore.dist import Ranks
from ftcore.run import build_engine
from ftcore.spec.sections import CheckpointSection, EvaluationSection, LoggingSection, Spec
from ftcore.train.loop import Trainer

VOCABULARY, WIDTH, LAYERS = 512, 64, 4
SAMPLES_A_RANK, SAMPLE_TOKENS = 4, 48
LONG_TOKENS = 400
BALANCED, DEALT = "balanced", "dealt"
UPDATES = 24
SAVE_EVERY = 5


def main() -> None:
    """Starts the ranks of each world size, waits for them, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_rank", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10, help="of each place")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--places", default=",".join((BALANCED, *PLACES, DEALT)))
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--sleep-ms", type=float, default=30.0, help="ten times as long at a checkpoint")
    parser.add_argument("--out", type=Path, help="write the findings of all trials as JSON")
    given = parser.parse_args()
    results: dict[str, Any] = {}
    for world_size in map(int, given.ranks.split(",")):
        with tempfile.TemporaryDirectory(prefix="ftlaunch-slow-rank-") as folder:
            save_model(Path(folder) / "model")
            write_even(Path(folder) / "even.arrow", 128)
            write_even(Path(folder) / "eval.arrow", SAMPLES_A_RANK * world_size)
            write_uneven(Path(folder) / "uneven.arrow")
            asked = {"trials": given.trials, "places": given.places.split(","), "stage": given.stage, "sleep_s": given.sleep_ms / 1e3}
            (Path(folder) / "asked.json").write_text(json.dumps(asked))
            results[str(world_size)] = run_on_ranks(run_trials, Path(folder), UPDATES, world_size=world_size)
            print_table(world_size, results[str(world_size)])
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


def run_trials(ranks: Ranks, folder: Path, updates: int) -> None:
    """All trials on one process group; rank 0 writes FOLDER/result.json."""
    asked = json.loads((folder / "asked.json").read_text())
    results: dict[str, list[dict[str, Any]]] = {}
    for trial in range(asked["trials"]):
        for place in asked["places"]:
            results.setdefault(place, []).append(run_trial(ranks, folder, place, trial, asked, updates))
    if ranks.is_first:
        (folder / RESULT).write_text(json.dumps(results))
    dist.barrier()
    dist.stop()
    os._exit(0)


def run_trial(ranks: Ranks, folder: Path, place: str, trial: int, asked: dict[str, Any], updates: int) -> dict[str, Any]:
    """One run; what was planted and the findings."""
    run, slow = folder / f"{place}_{trial}", trial % ranks.world_size
    spec = trial_spec(asked["stage"], ranks.world_size, updates, is_dealt=place == DEALT)
    if ranks.is_first:
        write_run(run, spec, ranks.world_size)
    dist.barrier()
    samples = folder / ("uneven.arrow" if place == DEALT else "even.arrow")
    job = dataclasses.replace(open_job(run, spec, folder / "model", samples), held_out={"eval": SampleSet.open(folder / "eval.arrow")})
    trainer = Trainer(build_engine(job, ranks), job, Cursor(order_seed=spec.train.seed, data_fingerprint=job.train.fingerprint))
    if place in PLACES and ranks.rank == slow:
        plant(trainer, place, asked["sleep_s"] * (10 if place == "checkpoint" else 1))
    trainer.run()
    trainer.engine.deepspeed.destroy()
    dist.barrier()
    events = [json.loads(line) for line in job.run_dir.events.read_text().splitlines()]
    lines = [json.loads(line) for line in job.run_dir.metrics.read_text().splitlines()]
    found = [event for event in events if event["event"] == "finding" and event["kind"] == "slow_rank"]
    return {"rank": slow, "found": found, "is_right": is_right(place, slow, found), "update_s": float(np.median([line["phase_seconds"] for line in lines]))}


def is_right(place: str, slow: int, found: list[dict[str, Any]]) -> bool:
    """Whether the findings say what was planted."""
    if place == BALANCED:
        return not found
    if place == DEALT:
        return bool(found) and all(each["cause"] == "data" for each in found)
    return bool(found) and all((each["rank"], each["phase"]) == (slow, place) for each in found)


def trial_spec(stage: int, world_size: int, updates: int, *, is_dealt: bool) -> Spec:
    """A log each update, a save and an evaluation every SAVE_EVERY; `is_dealt`: as many samples as ranks, and nothing else."""
    samples = world_size if is_dealt else SAMPLES_A_RANK * world_size
    spec = make_spec(stage=stage, coalesce=False, samples=samples, budget=LONG_TOKENS if is_dealt else 2 * SAMPLE_TOKENS, updates=updates)
    spec = dataclasses.replace(spec, logging=LoggingSection(logging_steps=1))
    if is_dealt:
        return spec
    return dataclasses.replace(spec, evaluation=EvaluationSection(eval_steps=SAVE_EVERY), checkpoint=CheckpointSection(save_steps=SAVE_EVERY))


def save_model(folder: Path) -> None:
    """A Llama of some hundred thousand parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 3 * WIDTH, "num_hidden_layers": LAYERS}
    LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=512)).save_pretrained(folder)


def write_even(path: Path, samples: int) -> None:
    """Samples of one length, so that every deal is even."""
    _write(path, [SAMPLE_TOKENS] * samples)


def write_uneven(path: Path) -> None:
    """Samples of all lengths."""
    _write(path, np.random.default_rng(3).integers(SAMPLE_TOKENS // 4, LONG_TOKENS + 1, size=256).tolist())


def _write(path: Path, lengths: list[int]) -> None:
    random = np.random.default_rng(2)
    ids = [random.integers(3, VOCABULARY, size=length).astype(np.int32) for length in lengths]
    spans = [[(length // 2, length)] for length in lengths]
    counts = Counts(rows=len(ids), tokens=sum(lengths), supervised_tokens=sum(end - start for [(start, end)] in spans))
    write_samples(path, ids, spans, list(range(1, len(ids) + 1)), counts)


def print_table(world_size: int, results: dict[str, list[dict[str, Any]]]) -> None:
    """A line a place."""
    print(f"{world_size} ranks")
    for place, trials in results.items():
        right = sum(trial["is_right"] for trial in trials)
        said = sorted({(each["rank"] == trial["rank"], each["phase"], each["cause"]) for trial in trials for each in trial["found"]})
        shown = ", ".join(f"{'the' if is_slow else 'another'} rank: {phase} ({cause})" for is_slow, phase, cause in said) or "nobody"
        update_ms = 1e3 * float(np.median([trial["update_s"] for trial in trials]))
        print(f"  {place:12}{right:3} of {len(trials):3} right   an update {update_ms:6.0f} ms   named: {shown}", flush=True)


if __name__ == "__main__":
    main()
