"""Evaluation loss: the sum of token losses over all ranks and rows, divided by their supervised tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ftcore.batch.collate import MicroBatch, collate
from ftcore.batch.deal import deal
from ftcore.data.cache import SampleSet
from ftcore.dist import gather_objects
from ftcore.engine import Engine
from ftcore.feed.layout import Layout
from ftcore.model.adapters import activate
from ftcore.spec.errors import TrainingError
from ftcore.spec.events import emit, emit_at
from ftcore.train.loss import supervised_logits, token_losses


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One set's result; the same on every rank, and for any number of ranks and micro-steps."""

    row_losses: npt.NDArray[np.float64]
    """[S]: sum of each sample's token losses."""
    row_tokens: npt.NDArray[np.int64]
    """[S]: supervised tokens of each sample."""

    @property
    def tokens(self) -> int:
        """Supervised tokens scored; each row once."""
        return int(self.row_tokens.sum())

    @property
    def loss(self) -> float:
        """Per supervised token; 0 for a set without any."""
        return float(self.row_losses.sum()) / self.tokens if self.tokens else 0.0

    @property
    def perplexity(self) -> float:
        """exp(loss), or infinity where that overflows."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf


def evaluate(engine: Engine, samples: SampleSet, layout: Layout, *, before_step: Callable[[], None] = lambda: None) -> Evaluation:
    """Scores every sample once, unweighted, dealt over the ranks like one large update. Leaves the engine in training mode.

    `before_step` is called before each micro-step, equally often on every rank; what it raises ends the evaluation.
    Raises TrainingError on all ranks when the ranks together did not score each sample once.
    """
    ranks = engine.ranks
    dealt = deal(
        samples.lengths,
        world_size=ranks.world_size,
        micro_batch_tokens=layout.micro_batch_tokens,
        attention_share=layout.attention_share,
        layout=layout.layout,
    )
    mine: list[tuple[npt.NDArray[np.int64], torch.Tensor]] = []
    engine.eval()
    with torch.no_grad():
        for done, part in enumerate(dealt.parts[ranks.rank]):
            before_step()
            emit_at("evaluate")
            if ranks.is_first:
                emit("progress", stage="evaluate", done=done, total=dealt.micro_steps, text=f"{len(samples)} samples")
            batch = collate([samples.sample(int(index)) for index in part], layout.layout).to(ranks.device)
            mine.append((part, _sums_by_sample(engine, batch, samples.supervised[part])))
    engine.train()
    row_losses, scored = np.zeros(len(samples)), np.zeros(len(samples), dtype=np.int64)
    for parts in gather_objects([(part, sums.cpu().numpy()) for part, sums in mine], ranks):
        for part, sums in parts:
            row_losses[part] += sums
            scored[part] += 1
    if not (scored == 1).all():
        raise TrainingError("the ranks did not score each row once", where="evaluation", fix="report it")
    return Evaluation(row_losses, samples.supervised.astype(np.int64))


@dataclass(frozen=True, slots=True)
class SetScores:
    """Every held-out set, scored with each adapter; the same on every rank."""

    means: dict[str, float]
    """`NAME/loss` of each set, its mean over the adapters, and `loss`: that of the first one."""
    records: list[dict[str, Any]]
    """What is written down of each set and adapter."""


def evaluate_sets(
    engine: Engine, held_out: dict[str, SampleSet], layout: Layout, *, adapters: tuple[str, ...] = (), before_step: Callable[[], None] = lambda: None
) -> SetScores:
    """Scores every set of `held_out`, as `evaluate` does, with each of several adapters or the model as it is."""
    means: dict[str, float] = {}
    records: list[dict[str, Any]] = []
    for name, samples in held_out.items():
        scored = []
        for adapter in adapters or ("",):
            if adapter:
                activate(engine.module, adapter)
            result = evaluate(engine, samples, layout, before_step=before_step)
            perplexity = result.perplexity if result.perplexity != math.inf else None
            scored.append({"set": f"{name}/{adapter}" if adapter else name, "loss": result.loss, "tokens": result.tokens, "perplexity": perplexity})
        means[f"{name}/loss"] = sum(record["loss"] for record in scored) / len(scored)
        means.setdefault("loss", means[f"{name}/loss"])
        records += scored
    return SetScores(means, records)


def _sums_by_sample(engine: Engine, batch: MicroBatch, counts: npt.NDArray[np.int32]) -> torch.Tensor:
    """Sum of the token losses of each of the micro-step's samples, float64 [n], on the rank's device."""
    losses_K = _losses(engine, batch)
    of_token = torch.repeat_interleave(torch.arange(len(counts)), torch.from_numpy(counts.astype(np.int64))).to(batch.targets_K.device)
    sums = torch.zeros(len(counts), dtype=torch.float64, device=batch.targets_K.device)
    return sums if losses_K is None else sums.index_add_(0, of_token, losses_K.double())


def _losses(engine: Engine, batch: MicroBatch) -> torch.Tensor | None:
    """`token_losses`; None for a micro-step without supervised tokens, whose forward pass is run all the same: ZeRO-3 gathers in it."""
    if batch.supervised_tokens:
        return token_losses(engine.deepspeed, batch)
    supervised_logits(engine.deepspeed, batch)
    return None
