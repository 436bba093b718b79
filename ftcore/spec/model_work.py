"""Floating point operations of a model's training, and the peak they are measured against: RUN/work.json, which a launch writes and rank 0 reads."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.resolved import build

WORK_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """The attention of some of the decoder layers."""

    square_flops: float
    """For each squared token of a sample: 6 · layers · heads · head size, forward and backward, each token seeing those before it."""
    window: int = 0
    """Tokens that one sees; 0: all before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """What MFU counts: the operations of the model's own matrix products; none that are done again for less memory."""

    token_flops: float
    """For each token: the decoder layers' matrices, and what adapters add."""
    supervised_token_flops: float
    """For each supervised token more: the head, which no other position needs."""
    attention: tuple[AttentionWork, ...]
    peak_flops: float | None
    """A second, of one rank's device, in the type that is computed in; None: not known."""
    on_cpu: bool
    """Whether the peak is that of cores."""
    accelerator: str
    """Whose peak it is; empty without one."""
    formula: str
    """How the numbers came about, in words."""
    version: int = WORK_VERSION

    def attention_flops(self, lengths: Iterable[int]) -> float:
        """Of training on samples of these lengths: n² for each, and where tokens see a window of w of them only, w · (2n - w)."""
        known = list(lengths)
        return sum(each.square_flops * sum(_seen_twice(n, each.window) for n in known) for each in self.attention)

    def flops(self, *, tokens: int, supervised_tokens: int, attention_flops: float) -> float:
        """Of training on so many tokens, with `attention_flops` as the method of that name gives them."""
        return self.token_flops * tokens + self.supervised_token_flops * supervised_tokens + attention_flops

    def to_json(self) -> str:
        """Indented JSON with a final newline."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"


def _seen_twice(length: int, window: int) -> int:
    """Twice the pairs of tokens that attend to each other."""
    return window * (2 * length - window) if 0 < window < length else length * length


def load_model_work(path: Path) -> ModelWork | None:
    """None where there is none that this version can read: MFU is then not known, and nothing else needs it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return build(ModelWork, data) if data.get("version") == WORK_VERSION else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
