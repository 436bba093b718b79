"""The training loop: window, deal, collate, update, write down; save and evaluate when due."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from ftcore.batch.collate import MicroBatch, collate
from ftcore.batch.cursor import Cursor
from ftcore.batch.deal import deal
from ftcore.batch.window import UpdateSequence, UpdateWindow
from ftcore.checkpoint.save import save_checkpoint
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource
from ftcore.engine import Engine
from ftcore.metrics.memory import peak_memory_bytes
from ftcore.metrics.writer import MetricsWriter, record_event
from ftcore.spec.errors import TrainingError
from ftcore.spec.events import emit
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from ftcore.train.evaluate import evaluate
from ftcore.train.schedule import learning_rate_factor
from ftcore.train.step import UpdateResult, run_update


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything a run trains with; the engine and the cursor are what changes."""

    spec: Spec
    run_dir: RunDir
    train: SampleSet
    eval: SampleSet | None
    sequence: UpdateSequence
    attention_share: float
    base: ModelSource


class Trainer:
    """Runs a job from a cursor to its end."""

    def __init__(self, engine: Engine, job: Job, cursor: Cursor) -> None:
        self.engine, self.job, self.cursor = engine, job, cursor
        self._saved_update = cursor.next_update or None
        ranks, run_dir = engine.ranks, job.run_dir
        self._metrics = MetricsWriter(run_dir.metrics, next_update=cursor.next_update) if ranks.is_first else None
        self._rank_metrics = MetricsWriter(run_dir.rank_metrics(ranks.rank), next_update=cursor.next_update)

    def run(self) -> None:
        """Trains every update that is left, evaluates, and saves at the end."""
        spec, total = self.job.spec, self.job.sequence.total_updates
        self.engine.train()
        first = self.cursor.next_update
        if first == 0 and spec.evaluation.eval_on_start:
            self._evaluate()
        for update in range(first, total):
            self.train_update(update, check_count=update == first)
            done = self.cursor.next_update
            if _due(done, spec.evaluation.eval_steps) and done < total:
                self._evaluate()
            if _due(done, spec.checkpoint.save_steps) and done < total:
                self._save()
        if first < total:
            self._evaluate()
            self._save()

    def train_update(self, update: int, *, check_count: bool) -> None:
        """Trains the update numbered `update` (from 0), moves the cursor and writes the metrics; every rank calls it."""
        started = time.perf_counter()
        job = self.job
        window = job.sequence.window(update)
        supervised = int(job.train.supervised[window.sample_ids].sum())
        rate = job.spec.optimizer.learning_rate * learning_rate_factor(job.spec.schedule, update, job.sequence.total_updates)
        batches = self._batches(window)
        data_seconds = time.perf_counter() - started
        result = None
        if supervised:
            try:
                result = run_update(self.engine, batches, supervised_tokens=supervised, learning_rate=rate, check_count=check_count)
            except TrainingError as error:
                if self.engine.ranks.is_first:
                    record_event(job.run_dir, "failed_update", update=update + 1, samples=window.sample_ids.tolist()[:200], reason=error.problems[0].what)
                raise
            result.seconds.data = data_seconds
        elif self.engine.ranks.is_first:
            record_event(job.run_dir, "empty_update", update=update + 1, reason="no supervised token in the update: nothing was changed")
        tokens = int(job.train.lengths[window.sample_ids].sum())
        next_epoch = job.sequence.window(update + 1).epoch if update + 1 < job.sequence.total_updates else window.epoch
        self.cursor = self.cursor.advance(epoch=next_epoch, samples=len(window.sample_ids), supervised_tokens=supervised, tokens=tokens)
        self._log(window, batches, result, rate=rate, wall=time.perf_counter() - started)

    def _batches(self, window: UpdateWindow) -> list[MicroBatch]:
        lengths = self.job.train.lengths[window.sample_ids]
        ranks = self.engine.ranks
        dealt = deal(
            lengths,
            world_size=ranks.world_size,
            micro_batch_tokens=self.job.spec.batch.micro_batch_tokens,
            attention_share=self.job.attention_share,
        )
        self._mine = [window.sample_ids[part] for part in dealt.parts[ranks.rank]]
        return [collate([self.job.train.sample(int(sample)) for sample in part]) for part in self._mine]

    def _log(self, window: UpdateWindow, batches: list[MicroBatch], result: UpdateResult | None, *, rate: float, wall: float) -> None:
        spec, done = self.job.spec, window.update + 1
        if not _due(done, spec.logging.logging_steps) and done != self.job.sequence.total_updates:
            return
        tokens = int(self.job.train.lengths[window.sample_ids].sum())
        supervised = int(self.job.train.supervised[window.sample_ids].sum())
        seconds = asdict(result.seconds) if result else {}
        if self._metrics is not None:
            record = {
                "update": done,
                "total_updates": self.job.sequence.total_updates,
                "epoch": round(window.epoch_progress, 4),
                "loss": result.loss if result else None,
                "grad_norm": result.grad_norm if result else None,
                "learning_rate": rate,
                "samples": len(window.sample_ids),
                "supervised_tokens": supervised,
                "tokens": tokens,
                "tokens_per_s": tokens / wall,
                "supervised_tokens_per_s": supervised / wall,
                "seconds": wall,
                "seconds_data": seconds.get("data"),
                "seconds_forward": seconds.get("forward"),
                "seconds_backward": seconds.get("backward"),
                "seconds_step": seconds.get("step"),
                "micro_steps": len(batches),
                "peak_memory_bytes": peak_memory_bytes(),
            }
            self._metrics.write(record)
            emit("update", **record)
        mine = {"update": done, "tokens": sum(batch.tokens for batch in batches), "micro_steps": len(batches)}
        mine |= {"peak_memory_bytes": peak_memory_bytes(), **seconds}
        if spec.logging.log_samples:
            mine["samples"] = [part.tolist() for part in self._mine]
        self._rank_metrics.write(mine)

    def _evaluate(self) -> None:
        if self.job.eval is None:
            return
        scored = evaluate(
            self.engine, self.job.eval, micro_batch_tokens=self.job.spec.batch.micro_batch_tokens, attention_share=self.job.attention_share
        )
        if self.engine.ranks.is_first:
            perplexity = scored.perplexity if scored.perplexity != float("inf") else None
            record_event(self.job.run_dir, "evaluation", update=self.cursor.next_update, loss=scored.loss, tokens=scored.tokens, perplexity=perplexity)

    def _save(self) -> None:
        if self._saved_update == self.cursor.next_update:
            return
        if self.engine.ranks.is_first:
            emit("progress", stage="save", done=self.cursor.next_update, total=self.job.sequence.total_updates, text="saving a checkpoint")
        path = save_checkpoint(self.engine, self.job.run_dir.checkpoints, cursor=self.cursor, spec=self.job.spec, base=self.job.base)
        self._saved_update = self.cursor.next_update
        if self.engine.ranks.is_first:
            record_event(self.job.run_dir, "checkpoint", update=self.cursor.next_update, path=path.name)


def _due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0
