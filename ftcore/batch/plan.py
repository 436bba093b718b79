"""What a run will do, counted before it starts: rows, tokens, updates, micro-steps. Lives in RUN/plan.json and RUN/plan.txt."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ftcore.batch.cost import AttentionShare, attention_share_of
from ftcore.batch.plan_counts import HeaviestStep, RunCounts, UpdateCounts, count_run
from ftcore.batch.precision import describe_precision
from ftcore.batch.window import UpdateSequence
from ftcore.data.cache import SampleSet
from ftcore.data.mix import SampleMix, supervised_share_of
from ftcore.data.prepared import Prepared, PreparedSet
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSet:
    """One set to train on."""

    format: str
    """What its rows were read as."""
    files: int
    rows: int
    samples: int
    dropped: dict[str, int]
    """Reason -> rows."""
    bad_rows: int
    split: int
    """Rows that became several samples."""
    repeated_tokens: int
    """Tokens of heads that stand in more than one sample of such a row."""
    drawn: int
    """Samples an epoch draws."""
    share: float
    """Of the samples that the counted updates hold."""
    token_share: float
    """Of their tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestSample:
    """The longest sample of all sets."""

    tokens: int
    set: str
    row: int
    """Of the set's source, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Counts of a run; tokens and samples are those trained on, after drops."""

    world_size: int
    zero_stage: int
    rows: int
    samples: int
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason -> rows."""
    bad_rows: int
    """Rows that break a rule, left out by data.on_bad_row: drop; among `dropped` too."""
    truncated: int
    """Rows cut to data.max_length."""
    split: int
    """Rows that became several samples."""
    tokens_read: int
    """Tokens of all rows: `tokens` - `repeated_tokens` + `dropped_tokens`."""
    dropped_tokens: int
    """Tokens of dropped rows, and those cut off."""
    repeated_tokens: int
    """Tokens that stand in more than one sample of a row that was split."""
    tokens: int
    """Of all samples, each once."""
    supervised_tokens: int
    samples_an_epoch: int
    """Samples an epoch draws; all of them once where the sets have no weights, samples or epochs."""
    sets: dict[str, PlannedSet]
    """Sets to train on by name."""
    longest: LongestSample
    epochs: float
    total_updates: int
    counted_updates: int
    """Updates the following figures come from: all of a run of fewer than COUNTED_SAMPLES samples."""
    counted_samples: int
    counted_tokens: int
    packs: int
    """Micro-steps of a rank that hold samples."""
    micro_steps_min: int
    """Micro-steps of an update."""
    micro_steps_mean: float
    micro_steps_max: int
    filler_rows: int
    """Micro-steps of a rank that hold no sample."""
    padding_tokens: int
    """Tokens computed that belong to no sample: one a filler row, and what fills up padded rows."""
    fill: float
    """Sample tokens over micro_batch_tokens, in micro-steps that hold samples."""
    fill_min: float
    """Of the update that is filled the least."""
    fill_max: float
    cost_imbalance: float
    """Mean over updates of the dearest rank's cost over the mean rank's."""
    cost_imbalance_min: float
    cost_imbalance_max: float
    waiting: float
    """Mean share of the ranks' time spent waiting when they wait for one another after each micro-step."""
    heaviest: HeaviestStep
    attention_share: AttentionShare
    """What attention adds to the cost of a sample."""
    precision: str
    """The types that weights, gradients and optimizer state are held in."""
    notes: tuple[str, ...] = ()
    """What a reader would not expect."""
    eval_samples: dict[str, int]
    """Evaluation set -> samples."""
    eval_supervised_tokens: dict[str, int]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    def render(self) -> str:
        """plan.txt."""
        lines = [*_data_lines(self), *_update_lines(self)]
        for name, samples in self.eval_samples.items():
            lines.append((f"evaluation set {name}", f"{samples:,} samples with {self.eval_supervised_tokens[name]:,} supervised tokens"))
        note = f"\nPacks, micro-steps, fillers, fill and imbalance are of the first {self.counted_updates:,} updates.\n"
        note = note if self.counted_updates < self.total_updates else ""
        note += "".join(f"\nNote: {text}.\n" for text in self.notes)
        return "\n".join(f"{name + ':':<30}{value}" for name, value in lines) + "\n" + note


def _data_lines(plan: Plan) -> list[tuple[str, str]]:
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(plan.dropped.items())) or "none"
    repeated = f" - {plan.repeated_tokens:,} repeated by splits" if plan.repeated_tokens else ""
    lines = [
        ("ranks", f"{plan.world_size}, ZeRO stage {plan.zero_stage}"),
        ("numeric types", plan.precision),
        ("rows read", f"{plan.rows:,}"),
        ("rows dropped", dropped),
        ("rows truncated", f"{plan.truncated:,}"),
        *([("rows split", f"{plan.split:,}")] if plan.split else []),
        ("samples", f"{plan.samples:,}"),
        ("tokens read", f"{plan.tokens_read:,} = {plan.tokens:,} trained on{repeated} + {plan.dropped_tokens:,} dropped or cut off"),
        ("tokens of all samples", f"{plan.tokens:,}"),
        ("supervised tokens of them", f"{plan.supervised_tokens:,} ({plan.supervised_tokens / max(1, plan.tokens):.1%})"),
        ("longest sample", f"{plan.longest.tokens:,} tokens, row {plan.longest.row:,}" + (f" of {plan.longest.set}" if len(plan.sets) > 1 else "")),
    ]
    if len(plan.sets) > 1 or plan.samples_an_epoch != plan.samples:
        lines.append(("samples an epoch", f"{plan.samples_an_epoch:,}"))
        for name, each in plan.sets.items():
            text = f"{each.drawn:,} an epoch of {each.samples:,} samples: {each.share:.1%} of the samples, {each.token_share:.1%} of the tokens"
            lines.append((f"training set {name}", text))
    return lines


def _update_lines(plan: Plan) -> list[tuple[str, str]]:
    least, most = plan.micro_steps_min, plan.micro_steps_max
    heavy = plan.heaviest
    return [
        ("epochs", f"{plan.epochs:g}"),
        ("updates", f"{plan.total_updates:,}"),
        ("packs", f"{plan.packs:,} with {plan.counted_samples:,} samples and {plan.counted_tokens:,} tokens"),
        ("micro-steps an update", f"{least}" if least == most else f"{least} to {most}, {plan.micro_steps_mean:.2f} on average"),
        ("heaviest micro-step", f"{heavy.tokens:,} tokens ({heavy.samples:,} samples, the longest {heavy.longest:,}), in update {heavy.update:,}"),
        ("filler rows", f"{plan.filler_rows:,}"),
        ("padding tokens", f"{plan.padding_tokens:,}"),
        ("fill of micro_batch_tokens", f"{plan.fill:.1%} ({plan.fill_min:.1%} to {plan.fill_max:.1%} by update)"),
        ("cost imbalance of the ranks", f"{plan.cost_imbalance:.3f} ({plan.cost_imbalance_min:.3f} to {plan.cost_imbalance_max:.3f} by update)"),
    ]


def make_plan(resolved: ResolvedSpec, train: SampleMix, evaluation: dict[str, SampleSet], prepared: Prepared) -> Plan:
    """Counts what the run will do. Pure: nothing but its arguments and the model's config.json decides it."""
    return plan_run(resolved, train, evaluation, prepared)[0]


def plan_run(resolved: ResolvedSpec, train: SampleMix, evaluation: dict[str, SampleSet], prepared: Prepared) -> tuple[Plan, UpdateCounts]:
    """`make_plan`, and the counts of each update."""
    spec = resolved.spec
    sequence = UpdateSequence(train, batch=spec.batch, train=spec.train, draws=spec.data.training)
    share = attention_share_of(prepared.model.path, supervised_share_of(train))
    counted = count_run(sequence, train, batch=spec.batch, world_size=resolved.world_size, share=share)
    each, sets = counted.updates, list(prepared.train.values())
    steps, packs = int((each.micro_steps * resolved.world_size).sum()), int(each.packs.sum())
    plan = Plan(
        world_size=resolved.world_size,
        zero_stage=spec.zero.stage,
        precision=describe_precision(spec),
        notes=_notes(spec),
        rows=sum(each.rows for each in sets),
        samples=len(train),
        dropped=_dropped(sets),
        bad_rows=sum(each.bad_rows for each in sets),
        truncated=sum(each.truncated for each in sets),
        split=sum(each.split for each in sets),
        tokens_read=sum(each.tokens_read for each in sets),
        dropped_tokens=sum(each.dropped_tokens for each in sets),
        repeated_tokens=sum(each.repeated_tokens for each in sets),
        tokens=int(train.lengths.sum(dtype=np.int64)),
        supervised_tokens=int(train.supervised.sum(dtype=np.int64)),
        samples_an_epoch=sequence.order.draws,
        sets=_sets(prepared, train, sequence, counted),
        longest=_longest(train),
        epochs=round(sequence.epochs, 4),
        total_updates=sequence.total_updates,
        attention_share=share,
        eval_samples={name: len(held_out) for name, held_out in evaluation.items()},
        eval_supervised_tokens={name: int(held_out.supervised.sum(dtype=np.int64)) for name, held_out in evaluation.items()},
        counted_updates=len(each),
        counted_samples=int(each.samples.sum()),
        counted_tokens=int(each.tokens.sum()),
        packs=packs,
        micro_steps_min=int(each.micro_steps.min()),
        micro_steps_mean=round(float(each.micro_steps.mean()), 4),
        micro_steps_max=int(each.micro_steps.max()),
        filler_rows=steps - packs,
        padding_tokens=int(each.padding.sum()),
        fill=float(each.tokens.sum() / (packs * spec.batch.micro_batch_tokens)),
        fill_min=float(each.fill.min()),
        fill_max=float(each.fill.max()),
        cost_imbalance=round(float(each.imbalance.mean()), 4),
        cost_imbalance_min=round(float(each.imbalance.min()), 4),
        cost_imbalance_max=round(float(each.imbalance.max()), 4),
        waiting=round(float(each.waiting.mean()), 4),
        heaviest=counted.heaviest,
    )
    return plan, each


def _sets(prepared: Prepared, train: SampleMix, sequence: UpdateSequence, counted: RunCounts) -> dict[str, PlannedSet]:
    samples, tokens = (max(1, sum(each[index] for each in counted.by_set.values())) for index in (0, 1))
    planned: dict[str, PlannedSet] = {}
    for name, size, drawn in zip(train.names, train.sizes, sequence.order.counts, strict=True):
        each = prepared.train[name]
        planned[name] = PlannedSet(
            format=each.format,
            files=len(each.files),
            rows=each.rows,
            samples=size,
            dropped=dict(sorted(each.dropped.items())),
            bad_rows=each.bad_rows,
            split=each.split,
            repeated_tokens=each.repeated_tokens,
            drawn=drawn,
            share=counted.by_set[name][0] / samples,
            token_share=counted.by_set[name][1] / tokens,
        )
    return planned


def _longest(train: SampleMix) -> LongestSample:
    longest = int(train.lengths.argmax())
    return LongestSample(tokens=int(train.lengths[longest]), set=train.names[int(train.set_of[longest])], row=int(train.rows[longest]))


def _dropped(sets: list[PreparedSet]) -> dict[str, int]:
    """Reason -> rows of all sets."""
    counted: Counter[str] = Counter()
    for each in sets:
        counted.update(each.dropped)
    return dict(sorted(counted.items()))


def _notes(spec: Spec) -> tuple[str, ...]:
    if spec.method.type == "qlora" and spec.zero.stage == 3:
        return ("each rank first loads the whole quantised base; stage 3 partitions it afterwards",)
    return ()
