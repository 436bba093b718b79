"""What is written down of an update: a line of metrics.jsonl (rank 0), one of metrics/rank_R.jsonl, and what the launcher and the reporters show of it.

Each field is described in docs/metrics.md and ftcore/spec/metrics.schema.json.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from ftcore.attribution.told import Told
from ftcore.dist import Ranks
from ftcore.feed.fed_update import FedUpdate
from ftcore.metrics.done_again import tell_done_again
from ftcore.metrics.energy import meter_of
from ftcore.metrics.memory import memory_fields
from ftcore.metrics.reporters import open_reporters
from ftcore.metrics.writer import MetricsWriter, json_ready
from ftcore.spec.events import attempt, emit
from ftcore.spec.model_work import load_model_work
from ftcore.spec.run_lines import METRICS_SCHEMA
from ftcore.train.job import Job
from ftcore.train.step import Update, UpdateResult
from ftcore.train.window import Window, own_lengths

Tell = Callable[[Sequence[float]], Told]
"""Brings the sums over all ranks of a few numbers, and what the ranks' phases were; every rank calls it with as many numbers."""


class UpdateLog:
    """The metrics files of one rank."""

    def __init__(self, job: Job, ranks: Ranks, *, next_update: int, total_updates: int) -> None:
        self._ranks, self._total, self._hardware = ranks, total_updates, job.spec.hardware
        if ranks.is_first:
            tell_done_again(job.run_dir, next_update)
        self._metrics = MetricsWriter(job.run_dir.metrics, next_update=next_update) if ranks.is_first else None
        self._rank_metrics = MetricsWriter(job.run_dir.rank_metrics(ranks.rank), next_update=next_update)
        self._reporters = open_reporters(job.spec, job.run_dir, next_update=next_update) if ranks.is_first else None
        self._work = load_model_work(job.run_dir.work)
        self._meter = meter_of(ranks.device, ranks.local_rank)
        self._joules = self._meter.joules()
        self._host = socket.gethostname()
        self._window, self._told = Window(), Window()
        self._phases: Told | None = None

    def count(self, fed: FedUpdate, started: float, *, is_logged: bool) -> float:
        """Counts an update that began at `started` (of time.perf_counter); for each of them, before its line is written. Returns its seconds."""
        if is_logged and self._ranks.device.type == "cuda":
            # Kernels that are only queued would be nobody's time.
            torch.cuda.synchronize(self._ranks.device)
        seconds = time.perf_counter() - started
        self._window.add(fed, seconds)
        return seconds

    @property
    def untold(self) -> dict[str, Any]:
        """What was counted since the last line: `dropped_rows` by reason, `truncated`; each only where there is some."""
        return _left_out(self._window)

    def write(self, fed: FedUpdate, update: Update, result: UpdateResult | None, extra: dict[str, Any], tell: Tell) -> dict[str, Any]:
        """The update's line, equal on all ranks but for times; every rank calls it, for what `tell` exchanges.

        `result` is None for an update that held nothing to learn from. `extra` is added to the line; its `seconds` are what `count` returned.
        """
        own, window = _own_losses(result), self._window
        joules = self._meter.joules()
        attended = math.nan if self._work is None else self._work.attention_flops(window.own_lengths.elements())
        told = tell([*own, attended, joules - self._joules])
        self._joules, self._phases = joules, told
        *sums, attended, energy = told.sums
        losses = {name: total / update.weight_sum for name, total in zip(update.adapters or ("",), sums, strict=True)} if own else {}
        record = {
            "schema": METRICS_SCHEMA,
            "attempt": attempt(),
            "time": time.time(),
            "update": fed.update + 1,
            "total_updates": self._total,
            "epoch": round(fed.epoch_progress, 4),
            "world_size": self._ranks.world_size,
            "loss": sum(losses.values()) / len(losses) if losses else None,
            "grad_norm": _norm(result),
            "learning_rate": update.learning_rate,
            **_counts(fed),
            **{f"seconds_{phase}": value for phase, value in (asdict(result.seconds) if result else {}).items()},
            **self._rates(window, attended),
            **memory_fields(),
            **extra,
            **self._spent(window, energy, told),
            **_left_out(window),
        }
        if update.adapters:
            record["losses"] = losses
        if result is not None and update.clip_groups is not None:
            record["group_norms"] = dict(zip(update.clip_groups.names, result.group_norms, strict=True))
        record = json_ready(record)
        self._told, self._window = window, Window()
        if self._metrics is not None:
            self._metrics.write(record)
            emit("update", **record)
        if self._reporters is not None:
            self._reporters.update(record)
        return record

    def write_rank(self, fed: FedUpdate, result: UpdateResult | None, extra: dict[str, Any], *, with_samples: bool) -> None:
        """This rank's own line, after `write`, with `extra` and, if asked for, the ids of its samples by micro-step."""
        mine = {"schema": METRICS_SCHEMA, "attempt": attempt(), "time": time.time(), "update": fed.update + 1, "rank": self._ranks.rank, "host": self._host}
        mine |= {"tokens": sum(own_lengths(fed)), "computed_tokens": sum(batch.tokens for batch in fed.batches), "micro_steps": len(fed.batches)}
        mine |= {"window_tokens": self._told.own_tokens, "window_computed_tokens": self._told.own_computed_tokens}
        mine |= {**memory_fields(), **extra, **(asdict(result.seconds) if result else {})}
        phases = self._phases.phases if self._phases is not None else None
        mine |= phases.ranks[self._ranks.rank].to_record(phases.updates) if phases is not None else _no_phases(self._told)
        if with_samples:
            mine["samples"] = [part.tolist() for part in fed.parts]
        self._rank_metrics.write(mine)

    def evaluation(self, update: int, record: Mapping[str, Any]) -> None:
        """What an evaluation after `update` updates found of one set, for the reporters; rank 0 calls it."""
        if self._reporters is not None:
            self._reporters.evaluation(update, record)

    def close(self) -> None:
        """Ends the reporters; what they hold still is written down."""
        if self._reporters is not None:
            self._reporters.close()

    def _rates(self, window: Window, attended: float) -> dict[str, Any]:
        """Sums and rates of all updates since the line before."""
        counts, seconds, work = window.counts, window.train_s, self._work
        mfu = None
        if work is not None and work.peak_flops and work.on_cpu == (self._ranks.device.type == "cpu") and math.isfinite(attended):
            flops = work.flops(tokens=counts.tokens, supervised_tokens=counts.supervised_tokens, attention_flops=attended)
            mfu = flops / (seconds * self._ranks.world_size * work.peak_flops)
        return {
            "window_train_seconds": seconds,
            **{f"window_{name}": count for name, count in asdict(counts).items()},
            "window_computed_tokens": window.computed_tokens,
            "tokens_per_s": counts.tokens / seconds,
            "supervised_tokens_per_s": counts.supervised_tokens / seconds,
            "mfu": mfu,
        }

    def _spent(self, window: Window, energy: float, told: Told) -> dict[str, Any]:
        """Phases since the line before, and what the devices took in that time."""
        phases = told.phases.to_record() if told.phases is not None else {**_no_phases(window), "slowest": None}
        device_s = self._ranks.world_size * float(phases["phase_seconds"])
        price, supervised = self._hardware.price_per_hour, window.counts.supervised_tokens
        cost = None if price is None else price * device_s / 3600
        return {
            **phases,
            "device_seconds": device_s,
            "energy_joules": energy if math.isfinite(energy) else None,
            "device_cost": cost,
            "cost_per_million_supervised_tokens": cost / supervised * 1e6 if cost is not None and supervised else None,
        }


def counts_of_sets(by_set: Mapping[str, Mapping[str, int]], seen: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """What a line says of each set of a mix: what the update holds of it, and, as NAME_seen, what the run has trained on so far."""
    return {name: {**counts, **{f"{key}_seen": count for key, count in seen[name].items()}} for name, counts in by_set.items()}


def _counts(fed: FedUpdate) -> dict[str, Any]:
    """Of the update alone, over all ranks."""
    computed = fed.computed_tokens
    return {**asdict(fed.counts), "computed_tokens": computed, "padding_share": 1 - fed.counts.tokens / computed if computed else 0.0}


def _left_out(window: Window) -> dict[str, Any]:
    dropped = {"dropped_rows": dict(window.dropped)} if window.dropped else {}
    return {**dropped, **({"truncated": window.truncated} if window.truncated else {})}


def _no_phases(window: Window) -> dict[str, Any]:
    return {"phase_updates": window.updates, "phase_seconds": time.perf_counter() - window.began, "phases": None}


def _own_losses(result: UpdateResult | None) -> list[float]:
    """This rank's weighted token losses, by adapter (one without a name): over all ranks and the update's weight they are its loss."""
    return [] if result is None else [float(each) for each in result.loss_sums.double().sum(dim=0).tolist()]


def _norm(result: UpdateResult | None) -> float | None:
    """The global norm before clipping."""
    if result is None:
        return None
    if result.group_norms:
        return math.sqrt(sum(norm * norm for norm in result.group_norms))
    norm = result.outcome.grad_norm
    return None if norm is None else float(norm)
