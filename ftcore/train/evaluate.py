"""Evaluation loss: the sum of token losses over all ranks and rows, divided by their supervised tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ftcore.batch.collate import collate
from ftcore.batch.deal import deal
from ftcore.data.cache import SampleSet
from ftcore.dist import sum_over_ranks
from ftcore.engine import Engine
from ftcore.spec.events import emit
from ftcore.train.loss import token_loss_sum


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The same on every rank, and for any number of ranks and micro-steps."""

    loss: float
    """Per supervised token."""
    tokens: int
    """Supervised tokens scored; each row once."""

    @property
    def perplexity(self) -> float:
        """exp(loss), or infinity where that overflows."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf


def evaluate(engine: Engine, samples: SampleSet, *, micro_batch_tokens: int, attention_share: float) -> Evaluation:
    """Scores every sample once, dealt over the ranks like one large update. Leaves the engine in training mode."""
    ranks = engine.ranks
    dealt = deal(samples.lengths, world_size=ranks.world_size, micro_batch_tokens=micro_batch_tokens, attention_share=attention_share)
    loss_sum, tokens = 0.0, 0
    engine.eval()
    with torch.no_grad():
        for done, part in enumerate(dealt.parts[ranks.rank]):
            if ranks.is_first:
                emit("progress", stage="evaluate", done=done, total=dealt.micro_steps, text=f"{len(samples)} samples")
            batch = collate([samples.sample(int(index)) for index in part]).to(ranks.device)
            loss_sum += float(token_loss_sum(engine.deepspeed, batch))
            tokens += batch.supervised_tokens
    engine.train()
    total, counted = sum_over_ranks([loss_sum, tokens], ranks)
    return Evaluation(loss=total / counted if counted else 0.0, tokens=int(counted))
