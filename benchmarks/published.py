"""Published training speeds with enough detail to be predicted: benchmarks/published_times.csv, each row with the file it was read in.

A row is what one run reached; rows of one `software` on one kind of accelerator can be set against each other. Speeds that were published as seconds or
totals are there as tokens a second of one accelerator.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.sections import BatchSection, DataSection, MethodSection, ModelSection, Spec, TrainingSet, TrainSection, ZeroSection
from launcher.memory.lengths import DataLengths
from launcher.memory.shape import ModelShape, Tensor

PUBLISHED = Path(__file__).with_name("published_times.csv")
MPT_SIZES = {
    "125m": (768, 12),
    "350m": (1024, 24),
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
NODE_BANDWIDTH = {"h100-80": 400.0, "a100-80": 200.0, "a100-40": 200.0}
"""GB/s of a host's network cards: 1600 Gbit/s as llm-foundry says of its A100; 400 Gbit/s an accelerator as torchtitan says, and as a DGX H100 has."""
A_NODE = 8
LORA_LLAMA_8B = 32 * 8 * (2 * 8192 + 2 * 5120 + 3 * 18432)
"""Rank 8 on all linear layers: 8·(in + out) parameters each, from the adapters of q, o, of k, v, and of gate, up, down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published speed."""

    software: str
    gpu: str
    model: str
    length: int
    gpus: int
    samples: int
    """In a micro-step of a rank."""
    micro_steps: int
    recompute: bool
    stage: int
    """ZeRO's: FULL_SHARD is 3, SHARD_GRAD_OP 2, a distributed optimizer 1."""
    tokens_per_s: float
    """On one accelerator."""
    source: str
    """Repository, file and commit."""
    method: str = "full"

    @property
    def name(self) -> str:
        """For a table."""
        return f"{self.gpu} {self.model} {self.length} {self.samples}x{self.micro_steps} on {self.gpus}"

    @property
    def nodes(self) -> int:
        """Hosts."""
        return max(1, self.gpus // A_NODE)

    @property
    def family(self) -> tuple[object, ...]:
        """Rows that differ in the number of accelerators and the cut into micro-steps alone."""
        return self.software, self.gpu, self.model, self.method, self.length, self.recompute


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
    head = 64 if hidden <= 1024 else 128
    sizes = {"hidden": hidden, "intermediate": 4 * hidden, "heads": hidden // head, "kv_heads": hidden // head, "head_dim": head, "vocab": MPT_VOCABULARY}
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


@functools.cache
def shape_of(model: str) -> ModelShape:
    """The shape of a row's model."""
    return llama_8b() if model == "llama-3.1-8b" else mpt_shape(*MPT_SIZES[model])


@functools.cache
def published() -> tuple[Row, ...]:
    """All rows of the file, in its order."""
    with PUBLISHED.open(encoding="utf-8") as file:
        return tuple(_row(line) for line in csv.DictReader(file))


def _row(line: dict[str, str]) -> Row:
    return Row(
        software=line["software"],
        gpu=line["gpu"],
        model=line["model"],
        length=int(line["length"]),
        gpus=int(line["gpus"]),
        samples=int(line["micro_batch"]),
        micro_steps=int(line["micro_steps"]),
        recompute=line["recompute"] == "1",
        stage=int(line["stage"]),
        tokens_per_s=float(line["tokens_per_s_a_gpu"]),
        source=f"{line['repository']}/{line['path']} at {line['commit'][:12]}",
        method=line["method"],
    )


def on_one_host() -> list[Row]:
    """What the model of time is fitted to: llm-foundry's rows of one host."""
    return [row for row in published() if row.software == "llm-foundry" and row.nodes == 1]


def on_several_hosts() -> list[Row]:
    """What nothing is fitted to."""
    return [row for row in published() if row.nodes > 1]


def contradicted(row: Row) -> Row | None:
    """A published row that says this one is no measure of its setting: more accelerators of the same family reach over a tenth more, each of them.

    With at most twice the micro-batch: more accelerators only add communication, and twice the micro-batch at most halves its share. No prediction
    has a part in this.
    """
    others = (each for each in published() if each.family == row.family and each.gpus > row.gpus and each.samples <= 2 * row.samples)
    return next((each for each in others if each.tokens_per_s > 1.1 * row.tokens_per_s), None)


def trained_of(row: Row) -> int:
    """Parameters that get gradients."""
    return LORA_LLAMA_8B if row.method == "lora" else shape_of(row.model).parameters


@functools.cache
def run_of(row: Row) -> ResolvedSpec:
    """The run as our spec would have it."""
    hosts = tuple(Host(name=f"host{number}", slots=min(A_NODE, row.gpus)) for number in range(row.nodes))
    # FSDP sends a decoder layer at a time; Megatron's distributed optimizer buckets about as large.
    unit = shape_of(row.model).parameters // shape_of(row.model).layers
    spec = Spec(
        model=ModelSection(model_name_or_path="x", dtype="bfloat16"),
        data=DataSection(train=TrainingSet(path="x"), max_length=row.length),
        method=MethodSection(type=row.method),
        batch=BatchSection(global_batch_size=row.samples * row.micro_steps * row.gpus, micro_batch_tokens=row.samples * row.length),
        train=TrainSection(max_steps=10, precision="bf16", gradient_checkpointing="full" if row.recompute else "none"),
        zero=ZeroSection(stage=row.stage, coalesce_grad_reduction=False, reduce_bucket_size=unit, allgather_bucket_size=unit),
    )
    resolved = ResolvedSpec(spec=spec, hosts=hosts, sources={}, cache_dir="/nowhere")
    return with_network(resolved, NODE_BANDWIDTH[row.gpu])


def with_network(resolved: ResolvedSpec, gb_per_s: float) -> ResolvedSpec:
    """The run with that network between its hosts."""
    hardware = dataclasses.replace(resolved.spec.hardware, inter_node_bandwidth=gb_per_s)
    return dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, hardware=hardware))


@functools.cache
def lengths_of(row: Row) -> DataLengths:
    """Samples that all fill the sequence."""
    samples = row.samples * row.micro_steps * row.gpus
    tokens = float(samples * row.length)
    return DataLengths(
        samples=samples,
        tokens=tokens,
        supervised_tokens=tokens,
        squares=tokens * row.length,
        longest=row.length,
        histogram={},
        origin="given",
        is_assumed=False,
    )
