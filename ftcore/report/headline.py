"""The numbers that are looked at first, and what stands out in a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from ftcore.report.blocks import Block, Prose, Section, Tile, Tiles
from ftcore.report.curves import as_number, column
from ftcore.report.numbers import NONE, count, duration, fixed, in_bytes, kind_name, money, percent, short_number
from ftcore.report.phase_times import limiting
from ftcore.report.run_view import Evaluated, RunView, peak_bytes, perplexity

CLIPPED_OFTEN = 0.5
PADDED_MUCH = 0.15
NEARLY_FULL = 0.9
WORSE_BY = 1.01


def headline(view: RunView, *, has_doctor: bool = False) -> Section:
    """The first part of a run's page; `has_doctor`: what the doctor found comes next."""
    blocks: list[Block] = [Tiles(tiles=tuple(_tiles(view)))]
    blocks += [Prose(text=text, tone=tone) for text, tone in stands_out(view, has_doctor=has_doctor)]
    return Section(title="", blocks=tuple(blocks))


def _tiles(view: RunView) -> Iterator[Tile]:
    totals, lines = view.totals, view.lines
    last = lines[-1] if lines else {}
    planned = last.get("total_updates")
    of = f"after update {count(totals.updates)}" + (f" of {count(as_number(planned))}" if planned else "") if lines else "no update yet"
    yield Tile(label="final loss" if view.state == "finished" else "newest loss", value=fixed(as_number(last.get("loss"))) if lines else NONE, note=of)
    yield evaluation_tile(view)
    attempts = f"{len(view.attempts)} attempts" if len(view.attempts) != 1 else "1 attempt"
    yield Tile(label="time", value=duration(totals.wall_s), note=f"{attempts}; updates alone {duration(totals.training_s)}")
    ranks = "1 rank" if view.world_size == 1 else f"{count(view.world_size)} ranks"
    yield Tile(label="device-hours", value=short_number(totals.device_hours), note=ranks)
    no_price = "hardware.price_per_hour is not set"
    yield Tile(label="cost", value=money(totals.cost, totals.currency), note="" if totals.cost is not None else no_price)
    supervised = f"{short_number(totals.supervised_tokens)} trained on"
    yield Tile(label="cost, 1M supervised tokens", value=money(totals.cost_per_million_supervised, totals.currency), note=supervised)
    padding = f"; padding {percent(totals.padding_share)}" if totals.padding_share is not None else ""
    yield Tile(label="tokens/s", value=count(totals.tokens_per_s), note=f"{count(totals.supervised_tokens_per_s)} supervised{padding}")
    if totals.mfu is not None:
        yield Tile(label="model flops utilisation", value=percent(totals.mfu))
    yield Tile(label="peak memory of a rank", value=in_bytes(peak_bytes(view)), note="resident size" if view.on_cpu else "allocated")
    what, share = limiting(view.phase_seconds)
    yield Tile(label="limited by", value=what, note=share)


def evaluation_tile(view: RunView) -> Tile:
    """The first held-out set, before and after."""
    if not view.evaluations:
        return Tile(label="evaluation", value=NONE, note="none was made")
    name, scores = next(iter(view.evaluations.items()))
    first, last = scores[0], scores[-1]
    if len(scores) == 1:
        when = "before training" if first.update == 0 else f"after update {count(first.update)}"
        return Tile(label="evaluation loss", value=fixed(first.loss), note=f"{name}, {when}")
    before = "before training" if first.update == 0 else f"update {count(first.update)}"
    note = f"{name}, {before} → update {count(last.update)}; perplexity {short_number(perplexity(first.loss))} → {short_number(perplexity(last.loss))}"
    tone = "good" if last.loss < first.loss else "wrong" if last.loss > first.loss or math.isnan(last.loss) else ""
    return Tile(label="evaluation loss", value=f"{fixed(first.loss, 3)} → {fixed(last.loss, 3)}", note=note, tone=tone)


def stands_out(view: RunView, *, has_doctor: bool = False) -> Iterator[tuple[str, str]]:
    """(what, tone) of each thing that a reader should know before all else."""
    if view.state == "failed":
        see = "" if has_doctor else " See also: ftlaunch doctor, with its folder."
        yield f"It failed: {(view.why or 'nothing tells why').rstrip('.')}.{see}", "wrong"
    elif view.why and view.state != "finished":
        yield f"{view.state.capitalize()}: {view.why.rstrip('.')}.", "warn"
    elif view.why:
        why = view.why.rstrip(".")
        yield f"It {why}." if why.startswith("stopped") else f"{why}.", "soft"
    if not view.lines:
        yield "No update is written down yet.", "soft"
    yield from _findings(view)
    yield from _overfitted(view)
    yield from _from_lines(view)
    redone = view.totals.redone_updates
    if redone:
        yield f"{count(redone)} {'update was' if redone == 1 else 'updates were'} trained twice: they came after the last checkpoint before a restart.", "soft"


def _findings(view: RunView) -> Iterator[tuple[str, str]]:
    """The newest finding of each kind, with what to check first."""
    found = [event for event in view.record.events if event["event"] == "finding"]
    kinds = Counter(str(event.get("kind")) for event in found)
    for kind, times in kinds.items():
        newest = next(event for event in reversed(found) if str(event.get("kind")) == kind)
        often = f" ({times} times, this one last)" if times > 1 else ""
        yield f"{kind_name(kind)}{often}: {newest.get('what') or 'nothing more is told'}.{_check(newest.get('causes'))}", "warn"


def _check(causes: object) -> str:
    cause = first_cause(causes)
    return f" Check first: {cause}." if cause else ""


def first_cause(causes: object) -> str:
    """What a finding of the run suspects first; empty: nothing."""
    known = [cause for cause in causes if isinstance(cause, dict) and cause.get("what")] if isinstance(causes, list) else []
    first = next((cause for cause in known if cause.get("suspected")), known[0] if known else None)
    return str(first["what"]) if first else ""


def _overfitted(view: RunView) -> Iterator[tuple[str, str]]:
    for name, scores in view.evaluations.items():
        finite = [each for each in scores if math.isfinite(each.loss)]
        best: Evaluated | None = min(finite, key=lambda each: each.loss, default=None)
        if best is not None and finite[-1].loss > best.loss * WORSE_BY and finite[-1] is not best:
            last = finite[-1]
            yield f"{name} was best at update {count(best.update)} ({fixed(best.loss)}) and is {fixed(last.loss)} at update {count(last.update)}.", "warn"


def _from_lines(view: RunView) -> Iterator[tuple[str, str]]:
    lines = view.lines
    skipped = [line for line in lines if line.get("stepped") is False]
    if skipped:
        yield f"{count(len(skipped))} of {count(len(lines))} logged updates changed nothing: they were not finite, or held nothing to learn from.", "warn"
    limit = as_number(view.spec("optimizer.max_grad_norm"))
    norms = [value for value in column(lines, "grad_norm") if math.isfinite(value)]
    clipped = sum(value > limit for value in norms) / len(norms) if norms and limit > 0 else 0.0
    if clipped > CLIPPED_OFTEN and len(norms) >= 10:
        yield f"The gradient norm was above its limit of {short_number(limit)} in {percent(clipped)} of the logged updates.", "soft"
    if (view.totals.padding_share or 0) > PADDED_MUCH:
        yield f"{percent(view.totals.padding_share)} of the computed positions are padding.", "warn"
    room = view.room_bytes
    peak = peak_bytes(view) or 0
    if peak > NEARLY_FULL * room:
        yield f"The peak of {in_bytes(peak)} is {percent(peak / room)} of the {in_bytes(room)} that a rank can have.", "warn"
