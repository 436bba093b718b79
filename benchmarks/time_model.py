"""The planner's model of time against published training speeds: `python -m benchmarks.time_model [--fit]`.

Prints each row, then the mean and the worst error; with --fit, the shares of the data sheet that fit the rows best, and the errors on rows they were not
fitted to. About 40 s.

Rows of benchmarks/published_times.csv are llm-foundry's (scripts/train/benchmarking/README.md): MPT models, all parameters trained, FSDP, bfloat16.
"""

from __future__ import annotations

import csv
import math
import random
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.sections import BatchSection, DataSection, MethodSection, ModelSection, Spec, TrainingSet, TrainSection, ZeroSection
from launcher.memory import roofline, work
from launcher.memory.accelerators import find_accelerator
from launcher.memory.lengths import DataLengths
from launcher.memory.network import network_of
from launcher.memory.roofline import UpdateTime, update_time
from launcher.memory.shape import ModelShape, Tensor
from launcher.memory.traffic import traffic_of
from launcher.memory.work import work_of

PUBLISHED = Path(__file__).with_name("published_times.csv")
MPT_SIZES = {
    "760m": (1536, 24),
    "1b": (2048, 24),
    "3b": (2560, 32),
    "7b": (4096, 32),
    "13b": (5120, 40),
    "30b": (7168, 48),
    "70b": (8192, 80),
}
"""Width and layers (llm-foundry, scripts/train/yamls/pretrain)."""
MPT_VOCABULARY = 50432


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published speed."""

    name: str
    gpu: str
    shape: ModelShape
    length: int
    gpus: int
    samples: int
    """In a micro-step of a rank."""
    micro_steps: int
    recompute: bool
    method: str = "full"
    trained: int = 0
    """0: all parameters."""
    tokens_per_s: float
    """On one accelerator."""


def mpt_shape(hidden: int, layers: int) -> ModelShape:
    """An MPT model: one matrix for queries, keys and values, an MLP four times as wide, no biases, the head tied to the embedding."""
    at = tuple(range(layers))
    tensors = (
        Tensor(name="wte.weight", shape=(MPT_VOCABULARY, hidden), kind="embedding", module="embedding"),
        Tensor(name="blocks.{}.attn.Wqkv.weight", shape=(3 * hidden, hidden), kind="attention", module="linear", layers=at),
        Tensor(name="blocks.{}.attn.out_proj.weight", shape=(hidden, hidden), kind="attention", module="linear", layers=at),
        Tensor(name="blocks.{}.ffn.up_proj.weight", shape=(4 * hidden, hidden), kind="mlp", module="linear", layers=at),
        Tensor(name="blocks.{}.ffn.down_proj.weight", shape=(hidden, 4 * hidden), kind="mlp", module="linear", layers=at),
    )
    heads = hidden // 128
    sizes = {"hidden": hidden, "intermediate": 4 * hidden, "heads": heads, "kv_heads": heads, "head_dim": 128, "vocab": MPT_VOCABULARY}
    return ModelShape(family="mpt", layers=layers, tied=True, gated=False, norm="layer", activation="gelu", tensors=tensors, **sizes)


def llama_8b() -> ModelShape:
    """Llama-3-8B."""
    at, hidden, wide, keys = tuple(range(32)), 4096, 14336, 1024
    linears = {"q": (hidden, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, hidden)}
    mlp = {"gate": (wide, hidden), "up": (wide, hidden), "down": (hidden, wide)}
    tensors = (
        Tensor(name="embed", shape=(128256, hidden), kind="embedding", module="embedding"),
        *(Tensor(name=f"l.{{}}.{name}", shape=shape, kind="attention", module="linear", layers=at) for name, shape in linears.items()),
        *(Tensor(name=f"l.{{}}.{name}", shape=shape, kind="mlp", module="linear", layers=at) for name, shape in mlp.items()),
        Tensor(name="head", shape=(128256, hidden), kind="head", module="linear"),
    )
    sizes = {"hidden": hidden, "intermediate": wide, "heads": 32, "kv_heads": 8, "head_dim": 128, "vocab": 128256}
    return ModelShape(family="llama", layers=32, tied=False, tensors=tensors, **sizes)


def published() -> list[Row]:
    """All rows of the file, in its order."""
    rows = []
    with PUBLISHED.open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            row = Row(
                name=f"{line['gpu']} {line['model']} length {line['length']} on {line['gpus']}",
                gpu=line["gpu"],
                shape=mpt_shape(*MPT_SIZES[line["model"]]),
                length=int(line["length"]),
                gpus=int(line["gpus"]),
                samples=int(line["micro_batch"]),
                micro_steps=int(line["micro_steps"]),
                recompute=line["recompute"] == "1",
                tokens_per_s=float(line["tokens_per_s_a_gpu"]),
            )
            rows.append(row)
    return rows


def others() -> list[Row]:
    """Rows that nothing was fitted to: NeMo Automodel's LoRA on one H100, torchtitan's Llama-3-8B on 8 and 128."""
    llama = llama_8b()
    common = {"gpu": "h100-80", "shape": llama, "recompute": False, "samples": 1, "micro_steps": 1}
    # Rank 8 on all linear layers: 8·(in + out) parameters each, the layer's share from the adapters of q, k, v, o, gate, up, down.
    adapters = 32 * 8 * (2 * 8192 + 2 * 5120 + 3 * 18432)
    return [
        Row(name="Llama-3-8B LoRA length 4096 on 1", length=4096, gpus=1, method="lora", trained=adapters, tokens_per_s=12473, **common),
        Row(name="Llama-3-8B length 8192 on 8", length=8192, gpus=8, tokens_per_s=5762, **common),
        Row(name="Llama-3-8B length 8192 on 128", length=8192, gpus=128, tokens_per_s=5605, **common),
    ]


def predicted(row: Row) -> tuple[float, UpdateTime]:
    """(tokens a second of one accelerator, the update's times) by the planner's model."""
    hosts = tuple(Host(name=f"host{number}", slots=min(8, row.gpus)) for number in range(max(1, row.gpus // 8)))
    samples = row.samples * row.micro_steps * row.gpus
    spec = Spec(
        model=ModelSection(model_name_or_path="x", dtype="bfloat16"),
        data=DataSection(train=TrainingSet(path="x"), max_length=row.length),
        method=MethodSection(type=row.method),
        batch=BatchSection(global_batch_size=samples, micro_batch_tokens=row.samples * row.length),
        train=TrainSection(max_steps=10, precision="bf16", gradient_checkpointing="full" if row.recompute else "none"),
        zero=ZeroSection(stage=3, coalesce_grad_reduction=False),
    )
    resolved = ResolvedSpec(spec=spec, hosts=hosts, sources={}, cache_dir="/nowhere")
    tokens = float(samples * row.length)
    lengths = DataLengths(
        samples=samples,
        tokens=tokens,
        supervised_tokens=tokens,
        squares=tokens * row.length,
        longest=row.length,
        histogram={},
        origin="given",
        is_assumed=False,
    )
    trained = row.trained or row.shape.parameters
    work = work_of(resolved, row.shape, lengths, trained)
    accelerator = find_accelerator(row.gpu)
    times = update_time(spec, work, traffic_of(resolved, row.shape, trained, row.micro_steps), accelerator, network_of(resolved, accelerator))
    return tokens / row.gpus / times.total_s, times


def errors(rows: list[Row]) -> list[float]:
    """Predicted over published speed, less one, of each row."""
    return [predicted(row)[0] / row.tokens_per_s - 1 for row in rows]


def summary(name: str, rows: list[Row]) -> str:
    """Mean and worst error of some rows."""
    found = [abs(error) for error in errors(rows)]
    return f"{name}: {len(rows)} rows, mean error {statistics.mean(found):.1%}, worst {max(found):.1%}"


START = (0.7, 0.2, 0.8, 0.3, 6.0, 0.5)
"""Where a fit begins: share of matrix products and of attention on Hopper, the same on Ampere, MOVES, MOVES_AGAIN."""


@contextmanager
def shares(values: tuple[float, ...]) -> Iterator[None]:
    """The planner's model with these in place of its own."""
    before = dict(roofline.REACH), work.MOVES, work.MOVES_AGAIN
    roofline.REACH["hopper"] = roofline.Reach(matmul=values[0], attention=values[1], memory=0.75)
    roofline.REACH["ampere"] = roofline.Reach(matmul=values[2], attention=values[3], memory=0.75)
    work.MOVES, work.MOVES_AGAIN = values[4:]
    try:
        yield
    finally:
        roofline.REACH.update(before[0])
        work.MOVES, work.MOVES_AGAIN = before[1:]


def fit(rows: list[Row], rounds: int = 1200) -> tuple[float, ...]:
    """The shares with the least mean square of the logarithm of predicted over published speed, by a random search."""

    def loss(values: tuple[float, ...]) -> float:
        with shares(values):
            return statistics.mean(math.log(1 + error) ** 2 for error in errors(rows))

    chance, best, least, width = random.Random(0), START, loss(START), 0.15
    for number in range(1, rounds + 1):
        tried = tuple(value * math.exp(chance.gauss(0, width) * (chance.random() < 0.4)) for value in best)
        found = loss(tried)
        if found < least:
            best, least = tried, found
        width *= 0.6 if number % 300 == 0 else 1
    return best


def print_fit(rows: list[Row]) -> None:
    """The best shares, and the errors on each half of the rows of shares fitted to the other half."""
    print("best:", ", ".join(f"{value:.3f}" for value in fit(rows)))
    for half in (0, 1):
        with shares(fit(rows[1 - half :: 2])):
            print(summary("fitted to the other half", rows[half::2]))


def main() -> None:
    """Prints all rows, and what they come to."""
    rows = published()
    if "--fit" in sys.argv[1:]:
        print_fit(rows)
        return
    for row in [*rows, *others()]:
        speed, times = predicted(row)
        shares = [each / times.total_s for each in (times.compute_s, times.memory_s, times.communication_s)]
        where = f"{shares[0]:4.0%} compute {shares[1]:4.0%} memory {shares[2]:4.0%} network"
        print(f"{row.name:<36}{row.tokens_per_s:>9,.0f}{speed:>10,.0f} tokens/s {speed / row.tokens_per_s - 1:>+7.1%}   {where}")
    for gpu in ("h100-80", "a100-80"):
        print(summary(f"fitted, {gpu}", [row for row in rows if row.gpu == gpu]))
    print(summary("fitted, one host", [row for row in rows if row.gpus <= 8]))
    print(summary("fitted, several hosts", [row for row in rows if row.gpus > 8]))
    print(summary("not fitted", others()))


if __name__ == "__main__":
    sys.exit(main())
