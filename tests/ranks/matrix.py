"""The ways to split one update that the invariance matrix goes through, and a reference for each of its models."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from ftcore.batch.deal import deal
from ftcore.batch.window import UpdateSequence
from ftcore.data.cache import Counts, SampleSet, write_samples
from ftcore.data.mix import SampleMix
from ftcore.data.prepared import ModelSource
from ftcore.data.tokens import count_supervised
from ftcore.model.build import attach_method
from ftcore.spec.sections import Spec
from ftcore.train.schedule import learning_rate_factor
from tests.ranks.jobs import ATTENTION_SHARE
from tests.ranks.reference import Curve, train_model
from tests.ranks.small_model import VOCABULARY
from tests.ranks.specs import make_spec, with_section

GLOBAL_BATCH = 64
"""Enough samples for eight micro-steps on each of eight ranks."""
LONGEST = 12
AXES: dict[str, tuple[object, ...]] = {
    "world_size": (1, 2, 4, 8),
    "micro_steps": (1, 2, 3, 4, 5, 6, 7, 8),
    "stage": (0, 1, 2, 3),
    "coalesce": (False, True),
    "layout": ("packed", "padded"),
    "method": ("full", "lora"),
    "precision": ("fp32", "bf16"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One way to compute the same updates."""

    world_size: int
    micro_steps: int
    """Most micro-steps of an update on each rank."""
    stage: int
    coalesce: bool
    layout: str
    method: str
    precision: str

    @property
    def is_possible(self) -> bool:
        """Whether ftlaunch allows it and its axes mean something."""
        return not (self.precision == "bf16" and self.stage == 0) and not (self.coalesce and (self.stage < 2 or self.micro_steps == 1))


def every_split() -> list[Split]:
    """The whole product, without what is not possible."""
    splits = (Split(**dict(zip(AXES, values, strict=True))) for values in itertools.product(*AXES.values()))  # type: ignore[arg-type]
    return [split for split in splits if split.is_possible]


@cache
def pairwise_splits() -> tuple[Split, ...]:
    """Few splits that hold every possible pair of values of two axes: greedily, the one with most pairs that are still missing first."""
    pairs = {split: frozenset(itertools.combinations(((axis, getattr(split, axis)) for axis in AXES), 2)) for split in every_split()}
    missing = set().union(*pairs.values())
    chosen: list[Split] = []
    while missing:
        used = Counter((axis, getattr(split, axis)) for split in chosen for axis in AXES)
        # Of equals the one with the rarest values.
        best = max(pairs, key=lambda split: (len(pairs[split] & missing), -sum(used[axis, getattr(split, axis)] for axis in AXES)))
        chosen.append(best)
        missing -= pairs[best]
    return tuple(chosen)


def write_short_samples(path: Path, *, count: int = 160, seed: int = 8) -> SampleSet:
    """Lengths 8 to 12, so that budgets can be found for any number of micro-steps; every ninth sample supervises nothing."""
    random = np.random.default_rng(seed)
    ids = [random.integers(3, VOCABULARY, size=int(random.integers(8, LONGEST + 1))).astype(np.int32) for _ in range(count)]
    spans = [[(0, 1)] if row % 9 == 8 else [(1 + row % 5, len(each))] for row, each in enumerate(ids)]
    counts = Counts(rows=count, tokens=sum(map(len, ids)), supervised_tokens=sum(count_supervised(pairs) for pairs in spans))
    write_samples(path, ids, spans, list(range(1, count + 1)), counts)
    return SampleSet.open(path)


def windows_of(samples: SampleSet, spec: Spec) -> list[list[int]]:
    """The samples of each of the spec's updates."""
    sequence = UpdateSequence(SampleMix({"train": samples}), batch=spec.batch, train=spec.train)
    return [sequence.window(update).sample_ids.tolist() for update in range(sequence.total_updates)]


def budget_for(samples: SampleSet, windows: list[list[int]], split: Split) -> int:
    """The smallest micro_batch_tokens with which no update needs more micro-steps than the split says, and one needs as many."""
    for budget in range(LONGEST, GLOBAL_BATCH * LONGEST + 1):
        steps = [
            deal(
                samples.lengths[window],
                world_size=split.world_size,
                micro_batch_tokens=budget,
                attention_share=ATTENTION_SHARE,
                layout=split.layout,
            ).micro_steps
            for window in windows
        ]
        if max(steps) <= split.micro_steps:
            break
    if max(steps) != split.micro_steps:
        raise AssertionError(f"no budget gives {split}")
    return budget


def spec_of(split: Split, *, updates: int) -> Spec:
    """AdamW at a constant rate from the first update on, clipping always, no dropout; the budget is not set yet."""
    spec = make_spec(split.stage, updates=updates, precision=split.precision, method=split.method, coalesce=split.coalesce)
    spec = with_section(spec, "method", lora_dropout=0.0)
    spec = with_section(spec, "schedule", lr_scheduler_type="constant", warmup_steps=None)
    return with_section(spec, "batch", global_batch_size=GLOBAL_BATCH, layout=split.layout)


def reference_curves(source: ModelSource, samples: SampleSet, spec: Spec) -> tuple[Curve, Curve]:
    """The spec's run by plain torch: in its own precision, and in double from the same first values."""
    windows, section = windows_of(samples, spec), spec.optimizer
    rates = [section.learning_rate * learning_rate_factor(spec.schedule, update, len(windows)) for update in range(len(windows))]
    own, double = _plain_model(source, spec), _plain_model(source, spec).double()
    return train_model(own, samples, windows, rates, section), train_model(double, samples, windows, rates, section)


def _plain_model(source: ModelSource, spec: Spec) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(source.path, dtype=getattr(torch, str(spec.model.dtype)))
    return attach_method(base, spec.method, spec.train)
