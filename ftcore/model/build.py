"""The model to train, from a spec."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import torch

from ftcore.data.prepared import ModelSource
from ftcore.model.adapters import attach_adapters
from ftcore.model.full_precision import compute_in_fp32
from ftcore.model.groups import freeze_matching
from ftcore.model.load import load_base, partitioned_loading
from ftcore.model.recompute import recompute_activations
from ftcore.spec.sections import MethodSection, Spec, TrainSection


def attach_method(base: torch.nn.Module, method: MethodSection, train: TrainSection) -> torch.nn.Module:
    """The model to train: `base` itself for full, a PEFT model around it for lora and qlora; with activation checkpointing as `train` says.

    Raises SpecError when the method or the checkpointing does not fit the model.
    """
    recompute_activations(base, train.gradient_checkpointing)
    return base if method.type == "full" else attach_adapters(base, method, train)


def build_model(spec: Spec, source: ModelSource, ds_config: Path) -> torch.nn.Module:
    """The model to train, loaded partitioned in ZeRO stage 3. Needs the process group to exist there.

    A quantised base is loaded whole by every rank and partitioned by the engine: transformers can't quantise partitioned weights.
    """
    quantised = spec.method if spec.method.type == "qlora" else None
    with nullcontext() if quantised else partitioned_loading(ds_config):
        model = attach_method(load_base(spec.model, source, quantised, layout=spec.batch.layout), spec.method, spec.train)
    freeze_matching(model, spec.optimizer)
    compute_in_fp32(model, spec.optimizer)
    return model
