"""The sum of token losses of one row, with logits computed at supervised positions only.

Axes: K supervised positions, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ftcore.batch.collate import MicroBatch


def supervised_logits(model: torch.nn.Module, batch: MicroBatch) -> torch.Tensor:
    """Logits [K, V] at the row's supervised positions, in the model's type."""
    output = model(
        input_ids=batch.input_ids_1T,
        position_ids=batch.position_ids_1T,
        logits_to_keep=batch.keep_K,
        use_cache=False,
        **_segments(model, batch),
    )
    return output.logits[0]


def token_loss_sum(model: torch.nn.Module, batch: MicroBatch) -> torch.Tensor:
    """Sum over the row's supervised tokens of -log p(token), a scalar in fp32.

    A row without supervised tokens gives 0 with a gradient of 0 for every parameter that a loss would
    reach, so that its rank takes part in every collective.
    """
    logits_KV = supervised_logits(model, batch).float()
    if batch.supervised_tokens == 0:
        return logits_KV.sum() * 0.0
    return F.cross_entropy(logits_KV, batch.targets_K, reduction="sum")


def _segments(model: torch.nn.Module, batch: MicroBatch) -> dict[str, object]:
    config = getattr(model, "module", model).config  # a DeepSpeed engine's own `config` is not the model's
    if not str(config._attn_implementation).startswith("flash_attention"):
        return {"segment_lengths": batch.segment_lengths}
    lengths = torch.tensor((0, *batch.segment_lengths), dtype=torch.int32)
    boundaries = lengths.cumsum(0, dtype=torch.int32).to(batch.input_ids_1T.device)
    longest = max(batch.segment_lengths)
    return {"cu_seq_lens_q": boundaries, "cu_seq_lens_k": boundaries, "max_length_q": longest, "max_length_k": longest}
