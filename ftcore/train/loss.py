"""The sum of token losses of one micro-step, with logits computed at supervised positions only.

Axes: B rows, C columns with logits, K supervised positions, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ftcore.batch.collate import MicroBatch
from ftcore.cross_entropy import cross_entropy_sum


def supervised_logits(model: torch.nn.Module, batch: MicroBatch) -> torch.Tensor:
    """Logits [K, V] at the micro-step's supervised positions, in the model's type; one arbitrary position when there is none."""
    output = model(
        input_ids=batch.input_ids_BT,
        position_ids=batch.position_ids_BT,
        logits_to_keep=batch.keep_C,
        use_cache=False,
        **_boundaries(model, batch),
    )
    # A view: an index would give its backward pass a second tensor as large as the logits.
    logits_RV = output.logits.flatten(0, 1)
    if batch.pick_K is None:
        return logits_RV
    return logits_RV[batch.pick_K] if len(batch.pick_K) else logits_RV[:1]


def token_losses(model: torch.nn.Module, batch: MicroBatch) -> torch.Tensor:
    """-log p(token) [K] of each supervised token, fp32, unweighted, in the order of `targets_K`."""
    return F.cross_entropy(supervised_logits(model, batch).float(), batch.targets_K, reduction="none")


def token_loss_sum(model: torch.nn.Module, batch: MicroBatch) -> torch.Tensor:
    """Sum over the micro-step's supervised tokens of weight · -log p(token), a scalar in fp32.

    A micro-step without supervised tokens gives 0 with a gradient of 0 for every parameter that a loss would
    reach, so that its rank takes part in every collective.
    """
    logits_KV = supervised_logits(model, batch)
    if batch.supervised_tokens == 0:
        return logits_KV.float().sum() * 0.0
    return cross_entropy_sum(logits_KV, batch.targets_K, batch.weights_K)


def _boundaries(model: torch.nn.Module, batch: MicroBatch) -> dict[str, object]:
    """What tells the attention which positions belong together."""
    if batch.attention_mask_BT is not None:
        return {"attention_mask": batch.attention_mask_BT}
    config = getattr(model, "module", model).config  # a DeepSpeed engine's own `config` is not the model's
    if not str(config._attn_implementation).startswith("flash_attention"):
        return {"segment_lengths": batch.segment_lengths}
    lengths = torch.tensor((0, *batch.segment_lengths), dtype=torch.int32)
    boundaries = lengths.cumsum(0, dtype=torch.int32).to(batch.input_ids_BT.device)
    longest = max(batch.segment_lengths)
    return {"cu_seq_lens_q": boundaries, "cu_seq_lens_k": boundaries, "max_length_q": longest, "max_length_k": longest}
