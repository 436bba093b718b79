"""Attention that keeps the samples of a row apart: one causal call for each sample.

Axes: H query heads, G key heads, T tokens of the row, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from ftcore.spec.errors import TrainingError

USE_PADDED = "use batch.layout: padded, which gives each sample a row of its own"
NAME = "ft_segments"
"""What `attn_implementation` is set to in the model; not a mask interface, so transformers builds no mask."""


def segment_attention(
    module: torch.nn.Module,
    query_1HTD: torch.Tensor,
    key_1GTD: torch.Tensor,
    value_1GTD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each of `segment_lengths` (a forward keyword; the whole row when absent).

    Returns [1, T, H, D] as transformers expects. Sliding windows are honoured; soft-capped scores and
    attention sinks are refused with TrainingError, because scaled_dot_product_attention has neither.
    """
    for unsupported in ("softcap", "s_aux", "position_bias"):
        if options.get(unsupported) is not None:
            raise TrainingError(
                f"this model's attention uses {unsupported}, which samples packed in one row can't have with attn_implementation sdpa",
                where="model.attn_implementation",
                fix="use batch.layout: padded, or flash_attention_2 on a GPU",
            )
    lengths = options.get("segment_lengths") or (query_1HTD.shape[2],)
    window = options.get("sliding_window")
    dropout, scale = options.get("dropout", 0.0), options.get("scaling")
    outputs = []
    for query, key, value in zip(query_1HTD.split(lengths, dim=2), key_1GTD.split(lengths, dim=2), value_1GTD.split(lengths, dim=2), strict=True):
        mask = _window_mask(query.shape[2], window, query.device) if window is not None and query.shape[2] > window else None
        outputs.append(
            F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
            )
        )
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return joined.transpose(1, 2).contiguous(), None


def _window_mask(length: int, window: int, device: torch.device) -> torch.Tensor:
    """bool [length, length]: position i sees (i - window, i]."""
    distance = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)[None, :]
    return (distance >= 0) & (distance < window)


AttentionInterface.register(NAME, segment_attention)
