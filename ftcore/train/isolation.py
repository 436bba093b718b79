"""Prove, before training, that samples of a micro-step can't see each other in this model."""

from __future__ import annotations

import numpy as np
import torch

from ftcore.attention import USE_PADDED
from ftcore.batch.collate import collate
from ftcore.data.cache import Sample
from ftcore.engine import Engine
from ftcore.spec.errors import SpecError, TrainingError
from ftcore.train.loss import supervised_logits

PROBE_LENGTHS = (5, 7)
EXPERT_ROUNDINGS = 16
"""In units of the type's precision, of the largest logit; a leak is a multiple of it."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names by which configurations of transformers tell of experts."""


def require_isolated_samples(engine: Engine, layout: str = "packed") -> None:
    """Raises TrainingError when the logits are not finite, SpecError when another first sample changes the second one's logits: a model whose attention or
    convolution ignores sample boundaries would train on leaked context without any other sign. SpecError too for a model that can't do without the mask
    that a packed row doesn't have.

    Costs two forward passes over a dozen tokens; leaves the engine in training mode.
    """
    engine.eval()
    try:
        with torch.no_grad():
            one = _second_logits(engine, layout, first_token=1)
            other = _second_logits(engine, layout, first_token=2)
    except (AttributeError, KeyError, TypeError) as error:
        if layout != "packed":
            raise
        what = f"{type(engine.module).__name__} can't compute samples packed in one row ({type(error).__name__}: {error})"
        raise SpecError(what, where="batch.layout", fix=USE_PADDED) from error
    engine.train()
    if not (torch.isfinite(one).all() and torch.isfinite(other).all()):
        # NaN equals nothing, itself included: the comparison below would blame the attention.
        raise TrainingError(
            "the base model's logits are not finite",
            where="model.model_name_or_path",
            fix="its weights hold NaN or infinite values, or overflow in model.dtype: check them, or use dtype float32",
        )
    gap = float((one.float() - other.float()).abs().max())
    if gap > _rounding(engine, one):
        raise SpecError(
            f"{type(engine.module).__name__} lets samples of one micro-step see each other (logits differ by {gap:.3g})",
            where="batch.layout",
            fix=USE_PADDED if layout == "packed" else "use another model: report this one",
        )


def _rounding(engine: Engine, logits_KV: torch.Tensor) -> float:
    """How far logits may differ by rounding alone. Experts multiply the rows that chose them together, and another number of rows is summed in another order;
    everything else gives the same bits.
    """
    config = engine.module.config
    has_experts = any(getattr(config, name, None) for name in _EXPERTS)
    return EXPERT_ROUNDINGS * torch.finfo(logits_KV.dtype).eps * float(logits_KV.abs().max()) if has_experts else 0.0


def _second_logits(engine: Engine, layout: str, *, first_token: int) -> torch.Tensor:
    """Logits [K, V] of the second probe sample, after a first one made of `first_token`."""
    first, second = PROBE_LENGTHS
    fillers = Sample(ids=np.full(first, first_token, dtype=np.int32), spans=np.zeros((0, 2), dtype=np.int32), row=0)
    scored = Sample(ids=np.arange(3, 3 + second, dtype=np.int32), spans=np.array([[1, second]], dtype=np.int32), row=0)
    return supervised_logits(engine.deepspeed, collate([fillers, scored], layout).to(engine.ranks.device))
