"""What a finished run says at its end: pure functions from what was heard to text."""

from __future__ import annotations

from collections.abc import Iterator

from ftcore.spec.run_record import Totals
from launcher.children import Event
from launcher.memory.cost_text import spent
from launcher.progress import number
from launcher.record import Record


def render_summary(record: Record, *, run_folder: str, model_folder: str | None, checkpoint: str | None, sums: Totals | None = None) -> str:
    """Losses from first to last, what it took, and where things lie; folders that are None were not made."""
    lines = ["done"]
    if record.first_update is not None and record.last_update is not None:
        lines.append(f"  loss              {_change(record.first_update, record.last_update)}")
    for held_out, (first, last) in record.evaluations.items():
        name = "" if len(record.evaluations) == 1 else f"{held_out}: "
        lines.append(f"  evaluation loss   {name}{_change(first, last)}, per supervised token")
    if record.early_stop is not None:
        lines.append(f"  stopped early     {_reason(record.early_stop)}")
    if record.data_end is not None:
        lines.append(f"  data ended        after update {record.data_end.get('update')} of {record.data_end.get('total_updates')}, as data.repeat: false says")
    if record.dropped_rows:
        told = ", ".join(f"{count:,} {reason}" for reason, count in record.dropped_rows.items())
        lines.append(f"  rows dropped      {told}; of each update in metrics.jsonl")
    if record.skipped:
        lines.append(f"  updates skipped   {record.skipped}, not finite: see events.jsonl in the run folder")
    lines += [] if sums is None else _spent(sums)
    lines.append(f"  run folder        {run_folder}")
    if checkpoint is not None:
        lines.append(f"  checkpoint        {checkpoint}")
    if model_folder is not None:
        lines.append(f"  model             {model_folder}")
    return "\n".join(lines)


def _spent(sums: Totals) -> Iterator[str]:
    """Speed and device time over all attempts."""
    if sums.tokens_per_s and sums.supervised_tokens_per_s is not None:
        yield f"  speed             {sums.supervised_tokens_per_s:,.0f} supervised tokens/s, {sums.tokens_per_s:,.0f} tokens/s, while it trained"
    if sums.tokens_per_s:
        yield f"  device time       {spent(sums.device_hours, sums.cost, sums.currency)}"


def _change(first: Event, last: Event) -> str:
    if first is last:
        return _at(last)
    return f"{_at(first)} -> {_at(last)}"


def _at(event: Event) -> str:
    update = event.get("update")
    when = "before training" if update == 0 else f"update {update}"
    return f"{number(event.get('loss'), '.4f')} ({when})"


def _reason(event: Event) -> str:
    """Why a run ended before its last update."""
    threshold, count = event.get("threshold"), event.get("evaluations")
    least = f" by more than {number(threshold, 'g')}" if threshold else ""
    evaluations = "the last evaluation" if count == 1 else f"{count} evaluations"
    gain = f"no gain of {event.get('metric')}{least} in {evaluations}, its lowest is {number(event.get('lowest'), '.4f')}"
    return f"after update {event.get('update')} of {event.get('total_updates')}: {gain}"
