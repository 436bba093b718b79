"""What a run will do, counted before it starts: rows, tokens, updates, micro-steps. Lives in RUN/plan.json and RUN/plan.txt."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ftcore.batch.deal import deal
from ftcore.batch.padded import padded_tokens
from ftcore.batch.samples import sample_costs
from ftcore.batch.window import UpdateSequence
from ftcore.data.cache import SampleSet
from ftcore.data.mix import SampleMix
from ftcore.data.prepared import Prepared, PreparedSet
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import MethodSection, Spec

COUNTED_UPDATES = 500
"""Updates whose deal is worked out for the plan; a longer run's figures are those of its first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Counts of a run; tokens and samples are those trained on, after drops."""

    world_size: int
    zero_stage: int
    rows: int
    samples: int
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason -> rows."""
    truncated: int
    """Rows cut to data.max_length."""
    tokens_read: int
    """Tokens of all rows: `tokens` + `dropped_tokens`."""
    dropped_tokens: int
    """Tokens of dropped rows, and those cut off."""
    tokens: int
    supervised_tokens: int
    epochs: float
    total_updates: int
    counted_updates: int
    """Updates the following figures come from."""
    micro_steps_min: int
    micro_steps_max: int
    filler_rows: int
    """Micro-steps of a rank that hold no sample."""
    padding_tokens: int
    """Tokens computed that belong to no sample: one a filler row, and what fills up padded rows."""
    fill: float
    """Sample tokens over micro_batch_tokens, in micro-steps that hold samples."""
    cost_imbalance: float
    """Mean over updates of the dearest rank's cost over the mean rank's."""
    attention_share: float
    """c in the cost l + c·l²."""
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
        dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items())) or "none"
        steps = f"{self.micro_steps_min}" if self.micro_steps_min == self.micro_steps_max else f"{self.micro_steps_min} to {self.micro_steps_max}"
        rows = [
            ("ranks", f"{self.world_size}, ZeRO stage {self.zero_stage}"),
            ("numeric types", self.precision),
            ("rows read", f"{self.rows:,}"),
            ("rows dropped", dropped),
            ("rows truncated", f"{self.truncated:,}"),
            ("samples", f"{self.samples:,}"),
            ("tokens read", f"{self.tokens_read:,} = {self.tokens:,} trained on + {self.dropped_tokens:,} dropped or cut off"),
            ("tokens an epoch", f"{self.tokens:,}"),
            ("supervised tokens an epoch", f"{self.supervised_tokens:,} ({self.supervised_tokens / max(1, self.tokens):.1%})"),
            ("epochs", f"{self.epochs:g}"),
            ("updates", f"{self.total_updates:,}"),
            ("micro-steps an update", steps),
            ("filler rows", f"{self.filler_rows:,}"),
            ("padding tokens", f"{self.padding_tokens:,}"),
            ("fill of micro_batch_tokens", f"{self.fill:.1%}"),
            ("cost imbalance of the ranks", f"{self.cost_imbalance:.3f}"),
        ]
        for name, samples in self.eval_samples.items():
            rows.append((f"evaluation set {name}", f"{samples:,} samples with {self.eval_supervised_tokens[name]:,} supervised tokens"))
        note = f"\nMicro-steps, fillers, fill and imbalance are of the first {self.counted_updates} updates.\n"
        note = note if self.counted_updates < self.total_updates else ""
        note += "".join(f"\nNote: {text}.\n" for text in self.notes)
        return "\n".join(f"{name + ':':<30}{value}" for name, value in rows) + "\n" + note


def attention_share_of(model_path: str) -> float:
    """c of the cost l + c·l² for a causal decoder: 2·l·h attention FLOPs against 24·h² matmul FLOPs a token and layer, so 1 / (12·h).

    h is `hidden_size` in the model's config.json; 1/(12·1024) where there is none to read (a hub id not yet downloaded).
    """
    config = Path(model_path) / "config.json"
    hidden = 1024
    if config.is_file():
        values = json.loads(config.read_text(encoding="utf-8"))
        hidden = int(values.get("hidden_size") or values.get("n_embd") or (values.get("text_config") or {}).get("hidden_size") or hidden)
    return 1.0 / (12.0 * hidden)


def make_plan(resolved: ResolvedSpec, train: SampleMix, evaluation: dict[str, SampleSet], prepared: Prepared) -> Plan:
    """Counts what the run will do. Pure: nothing but its arguments and the model's config.json decides it."""
    spec = resolved.spec
    sequence = UpdateSequence(train, batch=spec.batch, train=spec.train, draws=spec.data.training)
    share = attention_share_of(prepared.model.path)
    counted = _count(sequence, train, resolved, share)
    sets = list(prepared.train.values())
    return Plan(
        world_size=resolved.world_size,
        zero_stage=spec.zero.stage,
        precision=describe_precision(spec),
        notes=_notes(spec),
        rows=sum(each.rows for each in sets),
        samples=len(train),
        dropped=_dropped(sets),
        truncated=sum(each.truncated for each in sets),
        tokens_read=sum(each.tokens_read for each in sets),
        dropped_tokens=sum(each.dropped_tokens for each in sets),
        tokens=int(train.lengths.sum(dtype=np.int64)),
        supervised_tokens=int(train.supervised.sum(dtype=np.int64)),
        epochs=round(sequence.epochs, 4),
        total_updates=sequence.total_updates,
        attention_share=share,
        eval_samples={name: len(held_out) for name, held_out in evaluation.items()},
        eval_supervised_tokens={name: int(held_out.supervised.sum(dtype=np.int64)) for name, held_out in evaluation.items()},
        counted_updates=counted.updates,
        micro_steps_min=counted.micro_steps_min,
        micro_steps_max=counted.micro_steps_max,
        filler_rows=counted.fillers,
        padding_tokens=counted.padding,
        fill=counted.fill,
        cost_imbalance=counted.imbalance,
    )


def _dropped(sets: list[PreparedSet]) -> dict[str, int]:
    """Reason -> rows of all sets."""
    counted: Counter[str] = Counter()
    for each in sets:
        counted.update(each.dropped)
    return dict(sorted(counted.items()))


def describe_precision(spec: Spec) -> str:
    """The types that weights, gradients and optimizer state are held in, in words."""
    sixteen = {"bf16": "bfloat16", "fp16": "float16 with a dynamic loss scale"}.get(spec.train.precision)
    if sixteen is not None:
        text = f"{sixteen}; master weights, moments and the sum of gradients in float32"
    elif spec.train.precision == "bf16_autocast":
        text = "float32, with matrix products in bfloat16"
    else:
        text = "float32"
    if spec.optimizer.type == "adamw_8bit":
        text += "; moments of hidden matrices in 8 bits"
    kept = [group.pattern for group in spec.optimizer.parameter_groups if group.keep_in_fp32]
    if kept:
        text += f"; {', '.join(kept)} computed in float32"
    if spec.method.type == "qlora":
        text += f"; linear layers of the base in {_quantised(spec.method)}"
    return text


def _quantised(method: MethodSection) -> str:
    if method.bits == 8:
        return "8 bits"
    stored = "" if method.storage_dtype == "uint8" else f", stored as {method.storage_dtype}"
    computed = f", computed in {method.compute_dtype}" if method.compute_dtype else ""
    return f"{method.quant_type}, 4 bits{stored}{computed}"


def _notes(spec: Spec) -> tuple[str, ...]:
    if spec.method.type == "qlora" and spec.zero.stage == 3:
        return ("each rank first loads the whole quantised base; stage 3 partitions it afterwards",)
    return ()


@dataclass(frozen=True, slots=True)
class _Counted:
    updates: int
    micro_steps_min: int
    micro_steps_max: int
    fillers: int
    padding: int
    fill: float
    imbalance: float


def _count(sequence: UpdateSequence, train: SampleMix, resolved: ResolvedSpec, share: float) -> _Counted:
    budget = resolved.spec.batch.micro_batch_tokens
    updates = min(sequence.total_updates, COUNTED_UPDATES)
    steps: list[int] = []
    layout = resolved.spec.batch.layout
    tokens = filled_rows = fillers = padding = 0
    imbalances: list[float] = []
    for update in range(updates):
        lengths = train.lengths[sequence.window(update).sample_ids]
        dealt = deal(lengths, world_size=resolved.world_size, micro_batch_tokens=budget, attention_share=share, layout=layout)
        costs = sample_costs(lengths, share)
        steps.append(dealt.micro_steps)
        tokens += int(lengths.sum(dtype=np.int64))
        for parts in dealt.parts:
            filled_rows += sum(1 for part in parts if len(part))
            fillers += sum(1 for part in parts if not len(part))
            if layout == "padded":
                padding += sum(padded_tokens(lengths[part]) - int(lengths[part].sum()) for part in parts)
        per_rank = [sum(float(costs[part].sum()) for part in parts) for parts in dealt.parts]
        imbalances.append(max(per_rank) * len(per_rank) / sum(per_rank))
    return _Counted(
        updates=updates,
        micro_steps_min=min(steps),
        micro_steps_max=max(steps),
        fillers=fillers,
        padding=fillers + padding,
        fill=tokens / (filled_rows * budget),
        imbalance=round(sum(imbalances) / len(imbalances), 4),
    )
