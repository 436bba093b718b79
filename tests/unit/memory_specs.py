"""Specs and models for tests of the ledger."""

from __future__ import annotations

from typing import Any

from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.sections import (
    BatchSection,
    CheckpointSection,
    DataSection,
    MethodSection,
    ModelSection,
    OptimizerSection,
    Spec,
    TrainingSet,
    TrainSection,
    ZeroSection,
)
from launcher.memory.shape import ModelShape, Tensor, read_shape
from launcher.rules.precision import DTYPES
from tests.unit.published_models import REAL

LLAMA_8B: dict[str, Any] = REAL["Llama-3-8B"][1]


def resolved_of(
    *,
    method: MethodSection | None = None,
    zero: ZeroSection | None = None,
    optimizer: OptimizerSection | None = None,
    checkpoint: CheckpointSection | None = None,
    precision: str = "bf16",
    ranks: int = 8,
    hosts: int = 1,
    micro_batch_tokens: int = 4096,
) -> ResolvedSpec:
    """A resolved spec on `hosts` hosts of ranks / hosts slots each."""
    spec = Spec(
        model=ModelSection(model_name_or_path="a-model", dtype=DTYPES[precision]),
        data=DataSection(train=TrainingSet(path="rows.jsonl")),
        method=method or MethodSection(),
        batch=BatchSection(global_batch_size=16, micro_batch_tokens=micro_batch_tokens),
        optimizer=optimizer or OptimizerSection(),
        train=TrainSection(precision=precision, num_train_epochs=1.0),
        zero=zero or ZeroSection(coalesce_grad_reduction=False),
        checkpoint=checkpoint or CheckpointSection(),
    )
    return ResolvedSpec(spec=spec, hosts=tuple(Host(name=f"w{number}", slots=ranks // hosts) for number in range(hosts)), sources={}, cache_dir="/cache")


def llama_8b() -> ModelShape:
    """Llama-3-8B."""
    return read_shape(LLAMA_8B)


def one_matrix(rows: int, columns: int, *more: Tensor) -> ModelShape:
    """A model of one layer with a single linear layer, and `more`."""
    matrix = Tensor(name="model.layers.{}.mlp.up_proj.weight", shape=(rows, columns), kind="mlp", module="linear", layers=(0,))
    return ModelShape(
        family="llama",
        layers=1,
        hidden=columns,
        intermediate=rows,
        heads=1,
        kv_heads=1,
        head_dim=columns,
        vocab=8,
        tied=True,
        tensors=(matrix, *more),
    )
