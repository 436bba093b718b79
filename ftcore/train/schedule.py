"""The learning rate of each update, as the contract has it: a forecast beside a run counts with the same one."""

from __future__ import annotations

from ftcore.spec.learning_rate import learning_rate_factor

__all__ = ["learning_rate_factor"]
