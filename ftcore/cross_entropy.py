"""Cross-entropy over a large vocabulary without an fp32 copy of the logits: a block of rows at a time, the gradient in the logits' own memory.

Axes: K positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

BLOCK_BYTES = {"cpu": 4 * 2**20, "cuda": 256 * 2**20}
"""fp32 bytes of a block of rows: what a core's cache holds, or few large kernels."""


def cross_entropy_sum(logits_KV: torch.Tensor, targets_K: torch.Tensor, weights_K: torch.Tensor | None = None) -> torch.Tensor:
    """Sum over K of weight · -log softmax(logits)[target], a scalar in fp32; weights of None are ones.

    When a gradient is wanted the logits are overwritten by it: nothing else may read them afterwards.
    """
    if not (torch.is_grad_enabled() and logits_KV.requires_grad):
        return _blocks(logits_KV, targets_K, weights_K, in_place=False)
    return _CrossEntropySum.apply(logits_KV, targets_K, weights_K)  # type: ignore[no-untyped-call,no-any-return]


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_KV: torch.Tensor, targets_K: torch.Tensor, weights_K: torch.Tensor | None) -> torch.Tensor:
        # The derivative of the sum is known as soon as the softmax is: one pass over the vocabulary instead of two.
        gradient_KV = logits_KV.detach()
        total = _blocks(gradient_KV, targets_K, weights_K, in_place=True)
        ctx.gradient_KV = gradient_KV
        return total

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        gradient_KV: torch.Tensor = ctx.gradient_KV
        del ctx.gradient_KV
        return gradient_KV.mul_(outer[0]), None, None


def _blocks(logits_KV: torch.Tensor, targets_K: torch.Tensor, weights_K: torch.Tensor | None, *, in_place: bool) -> torch.Tensor:
    """The sum; with `in_place` the logits become its derivative."""
    rows = max(1, BLOCK_BYTES[logits_KV.device.type] // (4 * logits_KV.shape[1]))
    total = torch.zeros((), dtype=torch.float32, device=logits_KV.device)
    for start in range(0, len(targets_K), rows):
        block = logits_KV[start : start + rows]
        picked = targets_K[start : start + rows, None]
        weights = None if weights_K is None else weights_K[start : start + rows, None]
        log_softmax = torch.log_softmax(block.float(), dim=-1)
        losses = -log_softmax.gather(1, picked)
        total += losses.sum() if weights is None else (losses * weights).sum()
        if in_place:
            slope = log_softmax.exp_()
            slope.scatter_add_(1, picked, torch.full_like(losses, -1.0))
            block.copy_(slope if weights is None else slope.mul_(weights))
    return total
