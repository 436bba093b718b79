"""The blockwise cross-entropy against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ftcore import cross_entropy
from ftcore.cross_entropy import cross_entropy_sum


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("rows_of_block", [1, 3, 100])
def test_sum_and_gradient(dtype: torch.dtype, is_weighted: bool, rows_of_block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cross_entropy.BLOCK_BYTES, "cpu", rows_of_block * 4 * 53)
    torch.manual_seed(0)
    hidden, head = torch.randn(7, 11).to(dtype), torch.randn(53, 11).to(dtype)
    targets, weights = torch.randint(0, 53, (7,)), torch.rand(7) if is_weighted else None
    results = []
    for ours in (True, False):
        inputs = [hidden.clone().requires_grad_(), head.clone().requires_grad_()]
        logits = inputs[0] @ inputs[1].T
        if ours:
            loss = cross_entropy_sum(logits, targets, weights)
        else:
            losses = F.cross_entropy(logits.float(), targets, reduction="none")
            loss = losses.sum() if weights is None else (losses * weights).sum()
        (loss * 0.25).backward()
        results.append([float(loss.detach()), *(each.grad.float() for each in inputs)])
    (loss, hidden_slope, head_slope), (right, right_hidden, right_head) = results
    tolerance = 1e-6 if dtype == torch.float32 else 2e-2
    assert loss == pytest.approx(right, rel=1e-6)
    torch.testing.assert_close(hidden_slope, right_hidden, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(head_slope, right_head, rtol=tolerance, atol=tolerance)


def test_without_a_gradient_the_logits_stay() -> None:
    logits, targets = torch.randn(4, 9), torch.tensor([1, 2, 3, 4])
    before = logits.clone()
    assert float(cross_entropy_sum(logits, targets)) == pytest.approx(float(F.cross_entropy(logits, targets, reduction="sum")), rel=1e-6)
    assert torch.equal(logits, before)


def test_what_is_not_finite_stays_visible() -> None:
    """C11: an infinite or NaN logit gives an infinite or NaN loss, never a number."""
    logits = torch.zeros(2, 5)
    logits[1, 2] = float("nan")
    assert torch.isnan(cross_entropy_sum(logits.requires_grad_(), torch.tensor([0, 0])))
    hopeless = torch.tensor([[0.0, float("-inf")]], requires_grad=True)
    assert torch.isinf(cross_entropy_sum(hopeless * 1.0, torch.tensor([1])))
