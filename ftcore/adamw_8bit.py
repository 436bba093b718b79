"""bitsandbytes' AdamW with moments in 8 bits for hidden matrices, and in 32 for embeddings, the output head, biases and norms.

Which is which does not depend on the size of a partition, as bitsandbytes' own threshold would. Imported only where it is used.
"""

from __future__ import annotations

from typing import Any

import torch
from bitsandbytes.optim import AdamW8bit

from ftcore.coded_moments import MAPS, CodedPiece, coded_fields, decode, encode, is_coded, value_map


class GroupedAdamW8bit(AdamW8bit):
    """Groups with `is_hidden` have moments of 8 bits, all others of 32."""

    def get_config(self, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config(gindex, pindex, group)
        return config | {"optim_bits": 8 if group["is_hidden"] else 32}

    def fill_qmap(self) -> None:
        self.name2qmap |= {"dynamic": value_map("state1"), "udynamic": value_map("state2")}

    @torch.no_grad()
    def update_step(self, group: dict[str, Any], p: torch.Tensor, gindex: int, pindex: int) -> None:
        state = self.state[p]
        if p.device.type == "cpu" and is_coded(state):
            _step_on_cpu(p, state, group)
        else:
            super().update_step(group, p, gindex, pindex)


def _step_on_cpu(parameter: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """AdamW (arXiv:1711.05101, algorithm 2) on decoded moments, which are then coded as on accelerators."""
    parameter.data = parameter.data.contiguous()
    state["step"] += 1
    beta1, beta2 = group["betas"]
    gradient_N = parameter.grad.reshape(-1).float()  # type: ignore[union-attr]
    piece = CodedPiece(offset=0, phase=0, fields=coded_fields(state, 0, parameter.numel()))
    first_N, second_N = (decode(piece, field, state[MAPS[field]]) for field in MAPS)
    first_N.lerp_(gradient_N, 1 - beta1)
    second_N.mul_(beta2).addcmul_(gradient_N, gradient_N, value=1 - beta2)
    encode(state, "state1", first_N)
    encode(state, "state2", second_N)
    divisor_N = second_N.div_(1 - beta2 ** state["step"]).sqrt_().add_(group["eps"])
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    parameter.view(-1).addcdiv_(first_N, divisor_N, value=-group["lr"] / (1 - beta1 ** state["step"]))
