"""The training loop: take an update from the feeder, train it, write it down; save and evaluate when due."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

from ftcore.agreement import Agreement
from ftcore.attribution.attribution import Attribution
from ftcore.attribution.phases import CHECKPOINT, DATA_WAIT, EVALUATION
from ftcore.batch.cursor import Cursor
from ftcore.checkpoint.layout import checkpoint_path
from ftcore.checkpoint.load import evaluation_due_over_ranks, lowest_metric_over_ranks
from ftcore.checkpoint.saver import SaveOutcome, Saver
from ftcore.dist import barrier
from ftcore.engine import Engine
from ftcore.feed.fed_update import FedUpdate, planned_cost
from ftcore.metrics.writer import record_event
from ftcore.model.adapters import adapter_names
from ftcore.model.gradient_watch import GradientWatch
from ftcore.spec.errors import PreemptedError, TrainingError
from ftcore.spec.events import emit, emit_at
from ftcore.stream.course import StoppedStreamError
from ftcore.train.clip import clip_groups
from ftcore.train.early_stop import after_evaluation, is_over, made_up_for
from ftcore.train.evaluate import evaluate_sets
from ftcore.train.history import happened
from ftcore.train.insight import Insight
from ftcore.train.job import Job
from ftcore.train.log import UpdateLog, counts_of_sets
from ftcore.train.memory_probe import probe_memory, samples_named
from ftcore.train.nonfinite import NonFiniteRule, explain
from ftcore.train.preemption import hurried_save
from ftcore.train.profile import Profile
from ftcore.train.schedule import learning_rate_factor
from ftcore.train.step import Update, UpdateResult, run_update
from ftcore.train.tell_loop import tell_early_stop, tell_end, tell_save, tell_start


class Trainer:
    """Runs a job from a cursor to its end."""

    def __init__(self, engine: Engine, job: Job, cursor: Cursor, agreement: Agreement | None = None) -> None:
        """`agreement` says where all ranks stop when one was asked to; None: nobody asks."""
        self.engine, self.job, self._agreement = engine, job, agreement
        newest = checkpoint_path(job.run_dir.checkpoints, cursor.next_update)
        self.cursor = made_up_for(cursor, newest, job.spec.evaluation, engine.ranks) if job.spec.checkpoint.metric_for_best_model else cursor
        self._feeder = job.open_feeder(engine.ranks, cursor)
        self._total = self._feeder.total_updates
        self._waited_s = 0.0
        """For data, in this launch."""
        self._metric: float | None = None
        """The metric of the best model, where it was measured after the last update."""
        self._best: float | None = None
        """The lowest one of the run's checkpoints."""
        if job.spec.checkpoint.metric_for_best_model and cursor.next_update:
            self._best = lowest_metric_over_ranks(newest, engine.ranks)
        self._evaluating, self._data_ended, self._evaluated_at = False, False, -1
        self._position: dict[str, Any] | None = None
        """Where a stream stands, as far as this rank knows."""
        self._saved_as_due = cursor.next_update > 0 and evaluation_due_over_ranks(newest, engine.ranks)
        """There is a checkpoint of the updates done which says that their evaluation is still to be made."""
        self._first_update = cursor.next_update
        self._saver = Saver(engine, job.run_dir.checkpoints, spec=job.spec, base=job.base)
        self._log = UpdateLog(job, engine.ranks, next_update=cursor.next_update, total_updates=self._total)
        self._rule = NonFiniteRule(job.spec.train)
        self._insight = Insight(engine, job.spec, job.run_dir, samples_an_update=job.samples_an_update, total_updates=self._total)
        self._profile = Profile(job.spec.profiling, job.run_dir, engine.ranks)
        self._attribution = Attribution(engine.ranks, measures=job.spec.logging.phases, holders=engine.holders_of_collectives(), named=self._profile.phase)
        self._adapters = adapter_names(engine.module)
        self._clip_groups = clip_groups(engine, job.spec)

    def run(self) -> None:
        """Trains every update that is left, evaluates, and saves at the end.

        Raises PreemptedError, on all ranks, once the ranks have stopped as one of them was asked to and what they trained is saved.
        """
        try:
            self._run()
        except PreemptedError:
            self._leave()
            raise
        except TrainingError:
            # Raised on all ranks alike; the save that is being written is whole soon, and worth waiting for.
            self._poll(wait=True)
            raise
        except StoppedStreamError:
            # Raised on all ranks alike: what is trained is kept, to go on from without the row, or once it is mended.
            self._save_in_a_hurry()
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Ends what works beside the training; whoever calls `train_update` alone has to call it."""
        self._feeder.close()
        self._profile.close()
        self._attribution.close()
        self._log.close()

    def _run(self) -> None:
        spec, total = self.job.spec, self._total
        self.engine.train()
        self._attribution.listen()
        tell_start(self.job.run_dir, self._attribution, self.engine.ranks, self._first_update)
        self._stop_point()
        if (self._first_update == 0 and spec.evaluation.eval_on_start) or (self._saved_as_due and self._first_update < total):
            self._evaluate()
        if self._first_update < total and self.engine.ranks.device.type == "cuda":
            # On a CPU it would cost an update's time, and memory is seldom what ends a run there.
            probe_memory(self.engine, self.job)
        for update in range(self._first_update, total):
            if is_over(self.cursor, spec.evaluation):
                break
            self._profile.before(update + 1)
            self._data_ended = not self.train_update(update)
            if self._data_ended:
                break
            self._profile.after(update + 1)
            self._poll()
            done = self.cursor.next_update
            if done == total:
                break
            improved = _due(done, spec.evaluation.eval_steps) and self._evaluate()
            if improved or _due(done, spec.checkpoint.save_steps) or self._saver.wants_retry(done):
                self._save()
            if not is_over(self.cursor, spec.evaluation):
                self._stop_point()
        self._end()

    def _end(self) -> None:
        """Evaluates, unless evaluations have ended the run, and saves."""
        done, spec = self.cursor.next_update, self.job.spec
        is_stopped = done < self._total and not self._data_ended
        if is_stopped and self.engine.ranks.is_first:
            tell_early_stop(self.job.run_dir, self.cursor, spec, self._total)
        is_news = self._data_ended and self._is_news(done)
        if self._first_update < done or self._saved_as_due:
            if not is_stopped and self._evaluated_at != done:
                self._evaluate()
            with self._attribution.during(CHECKPOINT):
                for outcome in self._saver.finish(self.saved_cursor(), self._metric):
                    self._tell(outcome)
            self._insight.finish()
            self._insight.observe_phases(done, tell_end(self.job.run_dir, self._attribution, self.engine.ranks, done))
        if is_news and self.engine.ranks.is_first:
            record_event(self.job.run_dir, "data_end", update=done, total_updates=self._total, **self._log.untold)

    def _is_news(self, done: int) -> bool:
        """Whether the run's end by its data is told for the first time; nobody knew of it when the last update was saved, so that its evaluation is due."""
        if done == 0 or happened(self.job.run_dir, "data_end", done, self.engine.ranks):
            return False
        self._poll(wait=True)
        self._saved_as_due |= self._evaluated_at != done and done in (self._first_update, self._saver.saved_update)
        return True

    def saved_cursor(self) -> Cursor:
        """The cursor for a checkpoint; of a stream with every rank's part of its position. Every rank calls it."""
        return self.cursor if self._position is None else replace(self.cursor, stream=self._feeder.whole_position(self._position))

    def _stop_point(self) -> None:
        """A point at which all ranks may stop together. Raises PreemptedError; after the last update it saves instead, and the run ends as ever."""
        if self._agreement is None or not self._agreement.is_stop():
            return
        done, total = self.cursor.next_update, self._total
        if done < total:
            raise PreemptedError(f"stopped after update {done} of {total}, as the run was asked to")
        self._save_in_a_hurry()
        self._saved_as_due = self._evaluating

    def _leave(self) -> None:
        """Makes sure that there is a checkpoint of what is trained, and tells of the stop."""
        self._save_in_a_hurry()
        done = self.cursor.next_update
        if self.engine.ranks.is_first:
            path = checkpoint_path(self.job.run_dir.checkpoints, done).name if done else ""
            record_event(self.job.run_dir, "preempted", update=done, path=path)
        barrier()

    def _save_in_a_hurry(self) -> None:
        self._poll(wait=True)
        if self.cursor.next_update == self._first_update:
            return
        with self._attribution.during(CHECKPOINT):
            for outcome in hurried_save(self._saver, self.job.run_dir.checkpoints, self.saved_cursor(), self._metric, evaluation_due=self._evaluating):
                self._tell(outcome)

    def train_update(self, update: int) -> bool:
        """Trains the update numbered `update` (from 0), moves the cursor and writes the metrics; every rank calls it. False: the data have ended before it."""
        self._attribution.listen()
        started = time.perf_counter()
        emit_at("train", update)
        with self._attribution.during(DATA_WAIT):
            fed = self._feeder.next(update)
        self._waited_s += self._feeder.wait_s
        if fed is None:
            return False
        self._metric, self._position = None, fed.position
        plan = self._plan(fed)
        result = self._train(fed, plan) if plan.weight_sum > 0 else None
        if result is None and self.engine.ranks.is_first:
            record_event(self.job.run_dir, "empty_update", update=update + 1, reason="no supervised token in the update: nothing was changed")
        stepped = result is not None and result.outcome.applied
        by_set = {name: asdict(counts) for name, counts in fed.by_set.items()}
        self.cursor = self.cursor.advance(epoch=fed.epoch_after, stepped=stepped, **asdict(fed.counts), by_set=by_set)
        self._attribution.count(planned_cost(fed, self.job.layout))
        is_logged = self._is_logged(update + 1)
        seconds = self._log.count(fed, started, is_logged=is_logged)
        if is_logged:
            waited = {"data_wait_seconds": self._feeder.wait_s, "data_wait_seconds_total": self._waited_s}
            extra = {"seconds": seconds, **waited, "micro_steps": len(fed.batches), "stepped": stepped, **self._insight.extra()}
            extra |= {f"{name}_seen": getattr(self.cursor, f"{name}_seen") for name in asdict(fed.counts)}
            extra |= {"sets": counts_of_sets(by_set, self.cursor.seen_by_set)} if by_set else {}
            record = self._log.write(fed, plan, result, extra, self._attribution.tell)
            self._insight.observe(record, fed.longest, plan.clip_groups)
            self._insight.observe_phases(update + 1, self._attribution.told)
            self._log.write_rank(fed, result, waited, with_samples=self.job.spec.logging.log_samples)
        return True

    def _is_logged(self, done: int) -> bool:
        logging = self.job.spec.logging
        return done == self._total or any(_due(done, every) for every in (logging.logging_steps, logging.layer_grad_norm_steps))

    def _plan(self, fed: FedUpdate) -> Update:
        spec = self.job.spec
        # The schedule counts steps: an update that was skipped or empty does not use up learning rate.
        factor = learning_rate_factor(spec.schedule, self.cursor.steps_taken, self._total)
        return Update(
            weight_sum=fed.weight_sum,
            learning_rate=spec.optimizer.learning_rate * factor,
            adapters=self._adapters,
            clip_groups=self._clip_groups,
            muon_momentum=spec.optimizer.muon_momentum if spec.optimizer.type == "muon" else None,
            check_count=fed.update == self._first_update,
        )

    def _train(self, fed: FedUpdate, plan: Update) -> UpdateResult:
        engine = self.engine
        watch = GradientWatch(engine.module) if fed.update == self._first_update else None

        def before_step() -> None:
            if watch is not None:
                watch.require_all(engine.ranks)
            with self._attribution.during(CHECKPOINT):
                self._saver.before_step()
            self._insight.before_step(fed.update + 1)

        with samples_named(self.job, fed.parts, f"it was in update {fed.update + 1}"):
            result = run_update(engine, fed.batches, plan, before_step=before_step, enters=self._attribution.switch)
        if result.outcome.applied:
            self._rule.applied()
            return result
        why = explain(engine, result, [part.tolist() for part in fed.parts])
        if engine.ranks.is_first:
            name = "overflow" if why.is_scale_search else "failed_update"
            record_event(self.job.run_dir, name, update=fed.update + 1, reason=why.reason, micro_steps=list(why.culprits), loss_scale=engine.loss_scale())
        self._rule.refused(why)
        return result

    def _evaluate(self) -> bool:
        """Scores every set; True when the metric of the best model went down."""
        self._evaluating = True
        emit_at("evaluate", self.cursor.next_update)
        with self._attribution.during(EVALUATION):
            scores = evaluate_sets(self.engine, self.job.held_out, self.job.layout, adapters=self._adapters, before_step=self._stop_point)
        # All at once: an evaluation that is left half-way is made again from its beginning, and then written down.
        for record in scores.records if self.engine.ranks.is_first else ():
            record_event(self.job.run_dir, "evaluation", update=self.cursor.next_update, **record)
            self._log.evaluation(self.cursor.next_update, record)
        self._metric = scores.means.get(self.job.spec.checkpoint.metric_for_best_model)
        self.cursor = after_evaluation(self.cursor, self._metric, self.job.spec.evaluation)
        self._evaluating, self._evaluated_at = False, self.cursor.next_update
        if self._saved_as_due:
            self._saver.evaluated(self.cursor.next_update, self._metric)
            self._saved_as_due = False
        if self._metric is None or not (self._best is None or self._metric < self._best):
            return False
        self._best = self._metric
        return self.cursor.next_update > 0

    def _save(self) -> None:
        if self.engine.ranks.is_first:
            emit("progress", stage="save", done=self.cursor.next_update, total=self._total, text="saving a checkpoint")
        with self._attribution.during(CHECKPOINT):
            self._tell(self._saver.begin(self.saved_cursor(), self._metric))

    def _poll(self, *, wait: bool = False) -> None:
        with self._attribution.during(CHECKPOINT):
            self._tell(self._saver.poll(wait=wait))

    def _tell(self, outcome: SaveOutcome | None) -> None:
        if outcome is not None and self.engine.ranks.is_first:
            tell_save(self.job.run_dir, outcome)


def _due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0
