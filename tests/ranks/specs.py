"""Specs of rank tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from ftcore.spec.sections import (
    BatchSection,
    CheckpointSection,
    DataSection,
    LoggingSection,
    MethodSection,
    ModelSection,
    OptimizerSection,
    ScheduleSection,
    Spec,
    TrainingSet,
    TrainSection,
    ZeroSection,
)


def make_spec(
    stage: int,
    *,
    optimizer: OptimizerSection | None = None,
    budget: int = 80,
    updates: int = 20,
    precision: str = "fp32",
    method: str = "full",
    save_steps: int = 0,
    coalesce: bool = False,
) -> Spec:
    """A spec of the small model that keeps every checkpoint and writes down sample ids."""
    return Spec(
        model=ModelSection(model_name_or_path="small", dtype={"fp32": "float32", "bf16": "bfloat16"}[precision]),
        method=MethodSection(type=method, r=4, lora_alpha=8, lora_dropout=0.1 if method == "lora" else 0.0),
        data=DataSection(train=TrainingSet(path="samples"), max_length=40),
        batch=BatchSection(global_batch_size=8, micro_batch_tokens=budget),
        optimizer=optimizer or OptimizerSection(type="adamw", learning_rate=3e-3, weight_decay=0.1, max_grad_norm=1.0),
        schedule=ScheduleSection(lr_scheduler_type="cosine", warmup_steps=3),
        train=TrainSection(max_steps=updates, precision=precision, seed=3),
        zero=ZeroSection(stage=stage, coalesce_grad_reduction=coalesce),
        checkpoint=CheckpointSection(save_steps=save_steps, save_total_limit=100),
        logging=LoggingSection(log_samples=True),
    )


def with_section(spec: Spec, section: str, **changes: Any) -> Spec:
    """`spec` with some fields of one section changed."""
    return dataclasses.replace(spec, **{section: dataclasses.replace(getattr(spec, section), **changes)})
