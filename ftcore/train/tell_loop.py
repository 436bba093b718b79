"""Events of the training loop: its beginning, its end with the ranks' phases after the last line, and how saves ended."""

from __future__ import annotations

from ftcore.attribution.attribution import Attribution
from ftcore.attribution.told import ToldPhases
from ftcore.batch.cursor import Cursor
from ftcore.checkpoint.saver import SaveOutcome
from ftcore.dist import Ranks
from ftcore.metrics.writer import record_event
from ftcore.spec.events import emit
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec


def tell_start(run_dir: RunDir, attribution: Attribution, ranks: Ranks, done: int) -> None:
    """`loop_start`, with the hosts in the order of their first ranks."""
    if ranks.is_first:
        record_event(run_dir, "loop_start", update=done, world_size=ranks.world_size, hosts=list(dict.fromkeys(attribution.hosts)))


def tell_end(run_dir: RunDir, attribution: Attribution, ranks: Ranks, done: int) -> ToldPhases | None:
    """`loop_end`: what the ranks did after the last line, the last evaluation and the last save among it. Every rank calls it, for one collective.

    None with logging.phases false.
    """
    phases = attribution.tell(()).phases
    if phases is not None and ranks.is_first:
        record_event(run_dir, "loop_end", update=done, **phases.to_record())
    return phases


def tell_save(run_dir: RunDir, outcome: SaveOutcome) -> None:
    """`checkpoint` or `save_failed`; of rank 0."""
    if outcome.path is None:
        record_event(run_dir, "save_failed", update=outcome.update, rank=outcome.rank, reason=outcome.reason)
        what = f"the checkpoint after update {outcome.update} was not saved: {outcome.reason}"
        emit("note", text=f"{what}; earlier ones are untouched, and it is tried again")
        return
    record_event(run_dir, "checkpoint", update=outcome.update, path=outcome.path.name)
    if outcome.reason:
        record_event(run_dir, "note", text=f"{outcome.path.name} is saved, but the folder could not be tidied up: {outcome.reason}")


def tell_early_stop(run_dir: RunDir, cursor: Cursor, spec: Spec, total_updates: int) -> None:
    """`early_stop`, with the numbers that ended the run; of rank 0."""
    found = {"metric": spec.checkpoint.metric_for_best_model, "lowest": cursor.lowest_metric, "evaluations": cursor.evaluations_without_gain}
    found["threshold"] = spec.evaluation.early_stopping_threshold
    record_event(run_dir, "early_stop", update=cursor.next_update, total_updates=total_updates, **found)
