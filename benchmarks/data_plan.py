"""How fast a run is planned and how well its updates are dealt: `python -m benchmarks.data_plan [--samples N] [--rounds N] [--out FILE]`.

Order, window and deal of one epoch from lengths alone, on one core, for 8 ranks. Times are CPU seconds of this process, the least of the rounds; so other
work on the machine counts less. Micro-steps are compared with the bound L2 of Martello and Toth for each update, rounded up to whole micro-steps of all
ranks; costs of the ranks with their mean, by l + c·l² with c of SmolLM2-135M. Then one deal alone, and the first update of a run that goes on at 1 % and
at 99 %. Lengths are made, not read:
  chats         log-normal, mean 320, 8 to 2048 tokens
  long prompts  questions of 60 to 310 tokens after 0 to 8 solved ones, as `benchmarks.throughput --shots 8` makes them
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ftcore.batch.bound import martello_toth_bound
from ftcore.batch.cost import share_of_config
from ftcore.batch.deal import deal, deal_many
from ftcore.batch.plan_counts import count_run
from ftcore.batch.window import UpdateSequence
from ftcore.spec.sections import BatchSection, TrainSection

RANKS = 8
SMOLLM2_135M = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
}
SHARE = share_of_config(SMOLLM2_135M, 0.5)

Int32s = npt.NDArray[np.int32]


class Lengths:
    """A set of which only the lengths are known."""

    names, fingerprints, fingerprint = ("train",), ("made",), "made"

    def __init__(self, lengths: Int32s) -> None:
        self.lengths, self.sizes = lengths, (len(lengths),)
        self.supervised = (lengths // 2).astype(np.int32)
        self.set_of = np.zeros(len(lengths), dtype=np.int64)
        self.sets = (self,)


@dataclass(frozen=True)
class Measured:
    """One way to cut and deal one mix."""

    mix: str
    layout: str
    update: str
    micro_batch_tokens: int
    updates: int
    order_s: float
    window_s: float
    deal_s: float
    micro_steps: int
    bound: int
    """Of micro-steps; 0: padded rows have none here."""
    fill: float
    imbalance: float
    """Mean over updates of the dearest rank's cost over the mean rank's."""
    over_1_005: float
    """Share of updates above 1.005."""
    waiting: float

    @property
    def total_s(self) -> float:
        return self.order_s + self.window_s + self.deal_s


def main() -> None:
    """Measures, prints the tables, writes them to --out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    print(f"{given.samples:,} samples, {RANKS} ranks, c = {SHARE.full:.3g}")
    for mix, lengths in made_mixes(given.samples).items():
        for budget in (2048, 4096, 16384):
            for batch in (BatchSection(global_batch_size=256), BatchSection(tokens_per_update=2 * RANKS * budget)):
                for layout in ("packed", "padded"):
                    rows.append(measure(mix, lengths, batch, budget, layout, given.rounds))
                    print(described(rows[-1]), flush=True)
    single = {f"{mix}, {layout}": time_of_one_deal(lengths, layout) for mix, lengths in made_mixes(20_000).items() for layout in ("packed", "padded")}
    print("one deal of 256 samples, ms:", {name: round(seconds * 1e3, 2) for name, seconds in single.items()})
    seeks = time_of_seeks(given.samples)
    print("first update of a run that goes on, ms:", {name: round(seconds * 1e3, 1) for name, seconds in seeks.items()})
    if given.out:
        given.out.write_text(json.dumps({"epochs": [asdict(row) for row in rows], "deal_s": single, "seek_s": seeks}, indent=1) + "\n")


def made_mixes(samples: int) -> dict[str, Int32s]:
    """Lengths by the name of their mix."""
    rng = np.random.default_rng(0)
    chats = rng.lognormal(np.log(320) - 0.18, 0.6, samples).clip(8, 2048)
    before = rng.integers(0, 9, samples)
    question = rng.normal(185, 50, (samples, 9)).clip(60, 310)
    prompts = (question * (np.arange(9) <= before[:, None])).sum(axis=1).clip(8, 2048)
    return {"chats": chats.astype(np.int32), "long prompts": prompts.astype(np.int32)}


def measure(mix: str, lengths: Int32s, batch: BatchSection, budget: int, layout: str, rounds: int) -> Measured:
    """Plans one epoch `rounds` times."""
    spec = BatchSection(global_batch_size=batch.global_batch_size, tokens_per_update=batch.tokens_per_update, micro_batch_tokens=budget, layout=layout)
    train = TrainSection(num_train_epochs=1.0, seed=0)
    sequence = UpdateSequence(Lengths(lengths), batch=spec, train=train)
    windows = next(sequence.by_epoch())
    in_order = lengths[windows.order]

    def dealt() -> Any:
        return deal_many(in_order, windows.bounds, world_size=RANKS, micro_batch_tokens=budget, attention_share=SHARE, layout=layout)

    order_s = least(lambda: sequence.order.epoch(0, seed=0), rounds)
    both_s = least(lambda: next(UpdateSequence(Lengths(lengths), batch=spec, train=train).by_epoch()), rounds)
    deal_s = least(dealt, rounds)
    counts = count_run(sequence, Lengths(lengths), batch=spec, world_size=RANKS, share=SHARE).updates  # type: ignore[arg-type]
    bounds = [-(-martello_toth_bound(in_order[start:end], budget) // RANKS) for start, end in zip(windows.bounds[:-1], windows.bounds[1:], strict=True)]
    return Measured(
        mix=mix,
        layout=layout,
        update="256 samples" if batch.global_batch_size else f"{batch.tokens_per_update} tokens",
        micro_batch_tokens=budget,
        updates=len(counts),
        order_s=order_s,
        window_s=max(0.0, both_s - order_s),
        deal_s=deal_s,
        micro_steps=int(counts.micro_steps.sum()),
        bound=sum(bounds) if layout == "packed" else 0,
        fill=float(counts.tokens.sum() / (counts.packs.sum() * budget)),
        imbalance=float(counts.imbalance.mean()),
        over_1_005=float((counts.imbalance > 1.005).mean()),
        waiting=float(counts.waiting.mean()),
    )


def least(work: Callable[[], Any], rounds: int) -> float:
    """CPU seconds of the fastest of `rounds`."""
    taken = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return min(taken)


def time_of_one_deal(lengths: Int32s, layout: str) -> float:
    """CPU seconds of the deal of one update, the mean over updates, after a first one."""
    starts = range(0, len(lengths) - 256, 256)

    def once() -> None:
        for start in starts:
            deal(lengths[start : start + 256], world_size=RANKS, micro_batch_tokens=4096, attention_share=SHARE, layout=layout)

    return least(once, 3) / len(starts)


def time_of_seeks(samples: int) -> dict[str, float]:
    """CPU seconds until the first update of a run of 100 epochs is there, at its beginning and close to its end."""
    lengths = Lengths(made_mixes(samples)["chats"])
    batch = BatchSection(global_batch_size=256, micro_batch_tokens=4096)

    def at(share: float) -> float:
        def first_update() -> None:
            sequence = UpdateSequence(lengths, batch=batch, train=TrainSection(num_train_epochs=100.0, seed=0))
            ids = sequence.window(int(share * sequence.total_updates)).sample_ids
            deal(lengths.lengths[ids], world_size=RANKS, micro_batch_tokens=4096, attention_share=SHARE)

        return least(first_update, 5)

    return {"at 1 %": at(0.01), "at 99 %": at(0.99)}


def described(row: Measured) -> str:
    """One line of the table."""
    bound = f", micro-steps {row.micro_steps:,} ({row.micro_steps / row.bound - 1:+.2%} over the bound)" if row.bound else f", micro-steps {row.micro_steps:,}"
    times = f"{row.total_s:.3f} s (order {row.order_s:.3f}, window {row.window_s:.3f}, deal {row.deal_s:.3f})"
    costs = f"costs {row.imbalance:.4f} (over 1.005: {row.over_1_005:.1%} of updates), waiting {row.waiting:.2%}"
    return f"{row.mix}, {row.layout}, {row.update} an update, {row.micro_batch_tokens} a micro-step: {times}{bound}, fill {row.fill:.1%}, {costs}"


if __name__ == "__main__":
    main()
