"""Optimizers that DeepSpeed is handed; adamw and sgd it makes itself, from ds_config.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ftcore.muon import MuonAdamW
from ftcore.spec.errors import SpecError
from ftcore.spec.sections import OptimizerSection

MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
"""Torch groups -> the optimizer over them."""


def optimizer_maker(section: OptimizerSection) -> MakeOptimizer | None:
    """Makes the spec's optimizer; None where ds_config.json names it.

    Raises SpecError when its package is not installed.
    """
    makers = {"adamw_8bit": _adamw_8bit, "adafactor": _adafactor, "muon": _muon}
    if section.type == "adamw_8bit":
        _require_bitsandbytes()
    make = makers.get(section.type)
    return None if make is None else lambda groups: make(groups, section)


def _require_bitsandbytes() -> None:
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        what = f"adamw_8bit needs the package bitsandbytes, which can't be imported: {error}"
        raise SpecError(what, where="optimizer.type", fix="pip install 'ftlaunch[quant]', or use optimizer.type: adamw") from error


def _adamw_8bit(groups: list[dict[str, Any]], section: OptimizerSection) -> torch.optim.Optimizer:
    from ftcore.adamw_8bit import GroupedAdamW8bit

    return GroupedAdamW8bit(groups, lr=section.learning_rate, betas=_betas(section), eps=section.adam_epsilon, min_8bit_size=0)


def _adafactor(groups: list[dict[str, Any]], section: OptimizerSection) -> torch.optim.Optimizer:
    """As Hugging Face's Trainer makes it: the learning rate is the spec's, not one relative to the step or the size of the weights."""
    from transformers.optimization import Adafactor

    return Adafactor(groups, lr=section.learning_rate, scale_parameter=False, relative_step=False)


def _muon(groups: list[dict[str, Any]], section: OptimizerSection) -> torch.optim.Optimizer:
    return MuonAdamW(groups, lr=section.learning_rate, betas=_betas(section), eps=section.adam_epsilon, fused=True)


def _betas(section: OptimizerSection) -> tuple[float, float]:
    return section.adam_beta1, section.adam_beta2
