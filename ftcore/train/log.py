"""What is written down of an update: a line of metrics.jsonl (rank 0), one of metrics/rank_R.jsonl, and the launcher's progress line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ftcore.dist import Ranks, sum_over_ranks
from ftcore.feed.fed_update import FedUpdate
from ftcore.metrics.memory import peak_memory_bytes
from ftcore.metrics.writer import MetricsWriter
from ftcore.spec.events import emit
from ftcore.spec.run_dir import RunDir
from ftcore.train.step import Update, UpdateResult


class UpdateLog:
    """The metrics files of one rank."""

    def __init__(self, run_dir: RunDir, ranks: Ranks, *, next_update: int, total_updates: int) -> None:
        self._ranks, self._total = ranks, total_updates
        self._metrics = MetricsWriter(run_dir.metrics, next_update=next_update) if ranks.is_first else None
        self._rank_metrics = MetricsWriter(run_dir.rank_metrics(ranks.rank), next_update=next_update)
        self._dropped: Counter[str] = Counter()
        self._truncated = 0

    def count(self, fed: FedUpdate) -> None:
        """Counts what a stream dropped and cut for an update, to be told in the next line; for every update, before its line is written."""
        self._dropped.update(fed.dropped_rows)
        self._truncated += fed.truncated

    @property
    def untold(self) -> dict[str, Any]:
        """What was counted since the last line: `dropped_rows` by reason, `truncated`; each only where there is some."""
        dropped = {"dropped_rows": dict(self._dropped)} if self._dropped else {}
        return {**dropped, **({"truncated": self._truncated} if self._truncated else {})}

    def write(self, fed: FedUpdate, update: Update, result: UpdateResult | None, extra: dict[str, Any]) -> dict[str, Any]:
        """The update's line, equal on all ranks but for times; every rank calls it, for one collective.

        `result` is None for an update that held nothing to learn from. `extra` is added to the line.
        """
        losses, norm = self._losses(update, result), _norm(result)
        wall = float(extra["seconds"])
        record = {
            "update": fed.update + 1,
            "total_updates": self._total,
            "epoch": round(fed.epoch_progress, 4),
            "loss": sum(losses.values()) / len(losses) if losses else None,
            "grad_norm": norm,
            "learning_rate": update.learning_rate,
            **asdict(fed.counts),
            "computed_tokens": fed.computed_tokens,
            "tokens_per_s": fed.counts.tokens / wall,
            "supervised_tokens_per_s": fed.counts.supervised_tokens / wall,
            **{f"seconds_{phase}": value for phase, value in (asdict(result.seconds) if result else {}).items()},
            "peak_memory_bytes": peak_memory_bytes(),
            **extra,
        }
        record |= self.untold
        self._dropped.clear()
        self._truncated = 0
        if update.adapters:
            record["losses"] = losses
        if result is not None and update.clip_groups is not None:
            record["group_norms"] = dict(zip(update.clip_groups.names, result.group_norms, strict=True))
        record = {key: _json_number(value) for key, value in record.items()}
        if self._metrics is not None:
            self._metrics.write(record)
            emit("update", **record)
        return record

    def write_rank(self, fed: FedUpdate, result: UpdateResult | None, extra: dict[str, Any], *, with_samples: bool) -> None:
        """This rank's own line, with `extra` and, if asked for, the ids of its samples by micro-step."""
        held = sum(sum(batch.segment_lengths) for batch, part in zip(fed.batches, fed.parts, strict=True) if len(part))
        mine = {"update": fed.update + 1, "tokens": held, "computed_tokens": sum(batch.tokens for batch in fed.batches), "micro_steps": len(fed.batches)}
        mine |= {"peak_memory_bytes": peak_memory_bytes(), **extra, **(asdict(result.seconds) if result else {})}
        if with_samples:
            mine["samples"] = [part.tolist() for part in fed.parts]
        self._rank_metrics.write(mine)

    def _losses(self, update: Update, result: UpdateResult | None) -> dict[str, float]:
        """Loss of the update by adapter (one without a name): its weighted token losses over all ranks / their weights."""
        if result is None:
            return {}
        sums = sum_over_ranks(result.loss_sums.double().sum(dim=0).tolist(), self._ranks)
        return {name: total / update.weight_sum for name, total in zip(update.adapters or ("",), sums, strict=True)}


def counts_of_sets(by_set: Mapping[str, Mapping[str, int]], seen: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """What a line says of each set of a mix: what the update holds of it, and, as NAME_seen, what the run has trained on so far."""
    return {name: {**counts, **{f"{key}_seen": count for key, count in seen[name].items()}} for name, counts in by_set.items()}


def _norm(result: UpdateResult | None) -> float | None:
    """The global norm before clipping."""
    if result is None:
        return None
    if result.group_norms:
        return math.sqrt(sum(norm * norm for norm in result.group_norms))
    norm = result.outcome.grad_norm
    return None if norm is None else float(norm)


def _json_number(value: Any) -> Any:
    """NaN and infinities as text: JSON has no such numbers, and a line must stay readable by any reader."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
