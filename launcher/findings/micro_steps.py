"""The micro-steps of a run as rows that the memory ledger counts: the usual one, the one at which memory ran out, and one within a smaller budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_record import Line, number
from launcher.findings.seen import Seen, middle
from launcher.memory.activation_row import Row, largest_row

_HEAVIEST = re.compile(r"([0-9]+) tokens, ([0-9]+) of them supervised, the longest sample has ([0-9]+)")
_SAMPLES = re.compile(r"row [0-9]+ \(([0-9]+)\)")


def usual_row(seen: Seen) -> Row | None:
    """The median micro-step over all ranks' logged updates; None when there are none."""
    lines = [line for rank in seen.record.ranks.values() for line in rank if number(line, "micro_steps") >= 1]
    tokens = middle(number(line, "computed_tokens") / number(line, "micro_steps") for line in lines)
    updates = [line for line in seen.record.updates if number(line, "samples") > 0 and number(line, "tokens") > 0]
    if tokens < 1 or not updates:
        return None
    share = middle(number(line, "supervised_tokens") / number(line, "tokens") for line in updates)
    sample = middle(number(line, "tokens") / number(line, "samples") for line in updates)
    count = max(1, round(tokens / max(1.0, sample)))
    return _row(seen, [max(1, round(tokens / count))] * count, round(tokens * share))


def row_of_error(seen: Seen, error: Line, text: str) -> Row | None:
    """The micro-step that was computed when memory ran out: as the rank told it, else as its message says; None when neither does."""
    facts = memory_facts(error)
    segments = [int(each) for each in facts.get("segments") or () if isinstance(each, int) and each > 0]
    if segments:
        return _row(seen, segments, int(number(facts, "supervised_tokens", sum(segments))))
    heaviest = _HEAVIEST.search(text)
    if heaviest is None:
        return None
    tokens, supervised, longest = map(int, heaviest.groups())
    rest = tokens - longest
    return _row(seen, [longest, *([rest] if 0 < rest <= longest else [longest] * (rest // max(1, longest)))], supervised)


def memory_facts(error: Line) -> dict[str, Any]:
    """The numbers that a rank wrote down when memory ran out; empty without."""
    facts = error.get("memory")
    return facts if isinstance(facts, dict) else {}


def samples_in(text: str) -> list[int]:
    """Tokens of the samples that a message names, the longest first."""
    return [int(each) for each in _SAMPLES.findall(text)]


def within(row: Row, resolved: ResolvedSpec) -> Row:
    """What of `row` a micro-step of the budget of `resolved` still holds: its longest samples, as many as go in."""
    budget, kept = resolved.spec.batch.micro_batch_tokens, list[int]()
    for segment in sorted(row.segments, reverse=True):
        widest = max([*kept, segment])
        size = widest * (len(kept) + 1) if row.padded else sum(kept) + segment
        if not kept or size <= budget:
            kept.append(segment)
    share = row.supervised / max(1, sum(row.segments))
    return Row(segments=tuple(kept), supervised=max(1, round(sum(kept) * share)), padded=row.padded, on_cpu=row.on_cpu)


def widest_row(seen: Seen, resolved: ResolvedSpec) -> Row:
    """The largest micro-step that the spec allows."""
    return largest_row(resolved, on_cpu=seen.on_cpu)


def described(row: Row) -> str:
    """`4,096 tokens, 1,800 of them supervised, the longest sample 3,900`."""
    longest = max(row.segments)
    samples = f"{len(row.segments)} samples, the longest {longest:,}" if len(row.segments) > 1 else "one sample"
    return f"{row.tokens:,} tokens ({samples}), {row.supervised:,} of them supervised"


def _row(seen: Seen, segments: Sequence[int], supervised: int) -> Row:
    padded = seen.resolved is not None and seen.resolved.spec.batch.layout == "padded"
    return Row(segments=tuple(segments), supervised=max(1, min(supervised, sum(segments))), padded=padded, on_cpu=seen.on_cpu)
