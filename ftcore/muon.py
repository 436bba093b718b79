"""Muon: matrices move along their orthogonalised momentum, everything else with AdamW.

The method is Keller Jordan's (https://kellerjordan.github.io/posts/muon/), the size of a step that of "Muon is Scalable for LLM Training"
(arXiv:2502.16982, equation 4): as large as AdamW's usually are, so that one learning rate serves both kinds of parameters.
Shapes: R rows, C columns, E matrices that lie in one parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration, from the post."""
ITERATIONS = 5
MOMENTUM_BUFFER = "momentum_buffer"
"""The optimizer's state of a matrix."""
UPDATE_RMS = 0.2
"""Root mean square of an update before the learning rate, from section 2.2 of the paper."""


def orthogonalise(matrix_ERC: torch.Tensor) -> torch.Tensor:
    """U·Vᵀ of the singular value decomposition, about: singular values of all sizes but the smallest end between 0.65 and 1.2. fp32, of the same shape.

    In fp32 whatever the device: in bf16, as others do it, two orders of the same sums differ by 1e-3 in the update.
    """
    a, b, c = COEFFICIENTS
    tall = matrix_ERC.size(-2) > matrix_ERC.size(-1)
    x = matrix_ERC.float()
    x = x.mT if tall else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def muon_update(momentum: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """What the learning rate is multiplied by, flattened, for the momentum of one parameter of this shape; leading dimensions are matrices of their own."""
    rows, columns = shape[-2:]
    update = orthogonalise(momentum.view(-1, rows, columns))
    return update.reshape(-1).mul_(UPDATE_RMS * max(rows, columns) ** 0.5)


def advance_momentum(buffer: torch.Tensor, gradient: torch.Tensor, momentum: float) -> torch.Tensor:
    """Moves the average of gradients `buffer` on by one, in place; returns Nesterov's look ahead of it. Element by element, so any slice will do."""
    buffer.lerp_(gradient, 1 - momentum)
    return gradient.lerp(buffer, momentum)


class MuonAdamW(torch.optim.AdamW):
    """Steps groups with `is_hidden` along what stands in their gradients, which `ftcore.engine_muon` put there, and all others with AdamW."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        groups = self.param_groups
        for group in groups:
            if group["is_hidden"]:
                _descend(group)
        self.param_groups = [group for group in groups if not group["is_hidden"]]
        try:
            super().step(closure)
        finally:
            self.param_groups = groups


def _descend(group: dict[str, Any]) -> None:
    for parameter in group["params"]:
        if parameter.grad is not None:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(parameter.grad, alpha=-group["lr"])
