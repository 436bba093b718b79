"""How long a run takes and what it costs: the time of an average update by the roofline, times the updates, and the evaluations."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ftcore.spec.quantities import updates_in
from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.accelerators import Accelerator
from launcher.memory.items import Ledger
from launcher.memory.lengths import DataLengths, data_lengths, training_lengths
from launcher.memory.network import network_of
from launcher.memory.roofline import REACH, UpdateTime, update_time
from launcher.memory.shape import ModelShape
from launcher.memory.traffic import Traffic, traffic_of
from launcher.memory.work import Portion, Work, cut_update, work_of

FORWARD_SHARE = 1 / 3
"""Of an update's computing, its forward pass: what a token of an evaluation takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Time and money of a run, and what they come from."""

    accelerator: str
    """Name of what it was counted for."""
    ranks: int
    updates: int
    lengths: DataLengths
    portion: Portion
    work: Work
    traffic: Traffic
    update: UpdateTime
    evaluation_s: float
    """All evaluations together."""
    total_s: float
    """Training and evaluations; starting, saving and the export are not in it."""
    supervised_tokens: float
    """Of the whole run."""
    price: float | None
    """Of the whole run; None: hardware.price_per_hour is not given."""
    currency: str
    notes: tuple[str, ...]
    """What was assumed."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens trained on a second, over all ranks."""
        return self.portion.tokens / self.update.total_s

    @property
    def device_hours(self) -> float:
        """Hours, times accelerators."""
        return self.total_s * self.ranks / 3600

    @property
    def price_per_million(self) -> float | None:
        """Price of a million supervised tokens."""
        return None if self.price is None or not self.supervised_tokens else self.price / self.supervised_tokens * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """What a forecast has to know of the data."""

    train: DataLengths
    evaluated_tokens: float
    """Of all held-out sets together."""


def run_data(resolved: ResolvedSpec) -> RunData:
    """The lengths of the spec's sets, as far as they are known (see `launcher.memory.lengths`)."""
    evaluated = sum(data_lengths(resolved, held_out).tokens for held_out in resolved.spec.data.held_out.values())
    return RunData(train=training_lengths(resolved), evaluated_tokens=evaluated)


def time_and_cost(resolved: ResolvedSpec, shape: ModelShape, ledger: Ledger, accelerator: Accelerator, data: RunData | None = None) -> Forecast:
    """The forecast of a run on ranks of `accelerator`; `data` is looked up where it is not given."""
    return forecast_of(resolved, shape, ledger.trained, accelerator, data or run_data(resolved))


def forecast_of(resolved: ResolvedSpec, shape: ModelShape, trained: int, accelerator: Accelerator, data: RunData) -> Forecast:
    """The forecast of a run that trains so many parameters."""
    spec, train = resolved.spec, data.train
    portion = cut_update(spec, resolved.world_size, train)
    work = work_of(resolved, shape, train, trained)
    traffic = traffic_of(resolved, shape, trained, portion.micro_steps)
    network = network_of(resolved, accelerator)
    update = update_time(spec, work, traffic, accelerator, network)
    updates = updates_of(resolved, train)
    evaluation = evaluation_seconds(resolved, data.evaluated_tokens / max(1.0, portion.tokens), update, updates)
    total = updates * update.total_s + evaluation
    hours = total * resolved.world_size / 3600
    price = spec.hardware.price_per_hour
    return Forecast(
        accelerator=accelerator.name,
        ranks=resolved.world_size,
        updates=updates,
        lengths=train,
        portion=portion,
        work=work,
        traffic=traffic,
        update=update,
        evaluation_s=evaluation,
        total_s=total,
        supervised_tokens=updates * portion.tokens * train.supervised_share,
        price=None if price is None else price * hours,
        currency=spec.hardware.currency,
        notes=(*_notes(accelerator, train, spec.train.precision), *network.notes),
    )


def updates_of(resolved: ResolvedSpec, lengths: DataLengths) -> int:
    """Updates of the run: train.max_steps, or the epochs' windows (compare ftcore.batch.window)."""
    train, batch = resolved.spec.train, resolved.spec.batch
    if train.max_steps is not None:
        return train.max_steps
    if batch.global_batch_size is not None:
        an_epoch = math.ceil(lengths.samples / batch.global_batch_size)
    else:
        an_epoch = math.ceil(lengths.tokens / max(1, batch.tokens_per_update or 1))
    return max(1, updates_in(train.num_train_epochs or 0, an_epoch))


def evaluation_seconds(resolved: ResolvedSpec, portions: float, update: UpdateTime, updates: int) -> float:
    """All evaluations of a run, each as much as the forward passes of `portions` updates."""
    rules = resolved.spec.evaluation
    times = 1 + int(rules.eval_on_start) + ((updates - 1) // rules.eval_steps if rules.eval_steps else 0)
    computing = update.compute_s + update.memory_s + update.launch_s + update.communication_s
    return times * portions * computing * FORWARD_SHARE


def _notes(accelerator: Accelerator, lengths: DataLengths, precision: str) -> list[str]:
    notes = [f"lengths of the data: {lengths.origin}"] if lengths.is_assumed else []
    if accelerator.is_host:
        notes.append(f"speed of the CPU: {accelerator.source}; `ftlaunch pilot` measures it")
    elif accelerator.family not in REACH:
        notes.append(f"no published training speeds were at hand for {accelerator.name}: it is taken to reach what Hopper reaches of its data sheet")
    gain = accelerator.fp16_flops / accelerator.bf16_flops
    if gain > 2 and precision.startswith("bf16"):
        notes.append(f"{accelerator.name} has no tensor cores for bfloat16: float16 products (train.precision: fp16) are {gain:.0f} times as fast there")
    return notes
