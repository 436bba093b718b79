"""Whether every trained parameter gets a gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ftcore.dist import Ranks, gather_objects
from ftcore.spec.errors import TrainingError


class GradientWatch:
    """Notes which trained parameters a gradient reaches, until it is closed. A gradient of zero is one (LoRA's A at the first update); None is not.

    It listens on the parameters themselves, after autograd has added to them, since ZeRO takes gradients away as soon as they are reduced.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._waiting = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._handles = [parameter.register_hook(self._seen(name)) for name, parameter in self._waiting.items()]

    def _seen(self, name: str) -> Callable[[torch.Tensor], None]:
        def note(gradient: torch.Tensor) -> None:
            self._waiting.pop(name, None)

        return note

    def close(self) -> None:
        """Stops listening."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def missing(self, ranks: Ranks) -> list[str]:
        """Names of the trained parameters that no gradient reached on any rank, the same on all; every rank must call it."""
        everywhere = [set(names) for names in gather_objects(list(self._waiting), ranks)]
        nowhere = set.intersection(*everywhere)
        return [name for name in self._waiting if name in nowhere]

    def require_all(self, ranks: Ranks) -> None:
        """Closes, and raises TrainingError on every rank, before the first step, naming the parameters that no gradient reached."""
        self.close()
        missing = self.missing(ranks)
        if missing:
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise TrainingError(
                f"the loss does not reach {len(missing)} trained parameters: {', '.join(missing[:5])}{more}; nothing was changed",
                where="gradient",
                fix="train only what the model uses: correct method.target_modules and modules_to_save, or freeze them in optimizer.parameter_groups",
            )
