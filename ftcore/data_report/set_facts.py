"""One prepared set -> its part of the report. Works on the arrays of the samples: the rows are never all in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ftcore.data.cache import SampleSet
from ftcore.data.prepared import PreparedSet
from ftcore.data_report.copies import Copies, SetKeys, copies_within
from ftcore.data_report.facts import LongRow, RenderedSample, SetReport, TemplateFacts, WeightFacts
from ftcore.data_report.outcomes import Told, add_up, read_outcomes
from ftcore.data_report.rendered import segments_of
from ftcore.data_report.spread import Spread, histogram_of, spread_of
from ftcore.spec.errors import Problem

NO_COPIES = Copies(rows=0, groups=[], group_count=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSource:
    """What a set is, apart from its samples."""

    key: str
    purpose: str
    path: str
    files: tuple[str, ...]
    format: str
    format_reason: str
    revision: str
    template: TemplateFacts | None
    refusals: tuple[Problem, ...]
    rows_file: str


def set_report(source: SetSource, prepared: PreparedSet, keys: SetKeys | None, backend: Any, *, max_length: int, listed: int, rendered: int) -> SetReport:
    """The report of a set. `keys`: those of its samples, None where it has none; `backend`: its `tokenizers.Tokenizer`."""
    samples = SampleSet.open(prepared.arrow) if prepared.arrow else None
    told = add_up(read_outcomes(prepared.outcomes), listed)
    lengths = samples.lengths if samples is not None else np.zeros(0, dtype=np.int32)
    return SetReport(
        key=source.key,
        purpose=source.purpose,
        path=source.path,
        files=list(source.files),
        format=source.format,
        format_reason=source.format_reason,
        revision=source.revision,
        arrow=prepared.arrow,
        rows=prepared.rows,
        samples=prepared.samples,
        tokens=prepared.tokens,
        supervised_tokens=prepared.supervised_tokens,
        tokens_read=prepared.tokens_read,
        dropped_tokens=prepared.dropped_tokens,
        repeated_tokens=prepared.repeated_tokens,
        dropped=dict(prepared.dropped),
        bad_rows=prepared.bad_rows,
        truncated=prepared.truncated,
        split=prepared.split,
        lost_ends=prepared.lost_ends,
        first=told.first,
        without_targets=told.without_targets,
        lengths=spread_of(lengths),
        histogram=histogram_of(lengths, told.lost_lengths, max_length),
        supervised_shares=share_spread(samples) if samples is not None else None,
        longest=longest_rows(samples, told, prepared.outcomes, listed),
        copies=copies_within(keys, listed) if keys is not None else NO_COPIES,
        weights=weight_facts(samples) if samples is not None else None,
        template=source.template,
        rendered=rendered_samples(samples, backend, rendered) if samples is not None else [],
        refusals=list(source.refusals),
        rows_file=source.rows_file if told.counts else "",
    )


def share_spread(samples: SampleSet) -> Spread | None:
    """How the supervised share is spread over the samples, in percent."""
    return spread_of(np.rint(100.0 * samples.supervised / np.maximum(samples.lengths, 1)).astype(np.int64))


def longest_rows(samples: SampleSet | None, told: Told, outcomes: str, listed: int) -> list[LongRow]:
    """The longest rows, whatever became of them, longest first. `outcomes`: the file of those that were not kept as they are."""
    others = [LongRow(row=each.row, tokens=each.tokens, supervised_tokens=None, outcome=each.outcome) for each in told.longest]
    kept: list[LongRow] = []
    if samples is not None:
        lengths, rows = samples.lengths, samples.rows
        # Parts of rows that were split are among the longest samples, and left out below.
        count = min(4 * listed, len(lengths))
        top = np.argpartition(-lengths, count - 1)[:count].tolist()
        numbers = {int(rows[index]) for index in top}
        changed = {each.row for each in read_outcomes(outcomes) if each.row in numbers}
        whole = [index for index in top if int(rows[index]) not in changed]
        kept = [LongRow(row=int(rows[at]), tokens=int(lengths[at]), supervised_tokens=int(samples.supervised[at]), outcome="kept") for at in whole]
    return sorted([*kept, *others], key=lambda each: (-each.tokens, each.row))[:listed]


def weight_facts(samples: SampleSet) -> WeightFacts | None:
    """The weights; None where each is 1."""
    if not samples.is_weighted:
        return None
    smallest, largest, weighted = float("inf"), 0.0, 0
    for index in range(len(samples)):
        found = samples.sample(index).weights
        if found is None or not len(found):
            continue
        low, high = float(found.min()), float(found.max())
        smallest, largest = min(smallest, low), max(largest, high)
        weighted += (low, high) != (1.0, 1.0)
    return WeightFacts(samples=weighted, smallest=smallest, largest=largest, sum=float(samples.weight_sums.sum()))


def rendered_samples(samples: SampleSet, backend: Any, count: int) -> list[RenderedSample]:
    """`count` samples, spread evenly over the set."""
    total = len(samples)
    chosen: Sequence[int] = sorted({round(place * (total - 1) / max(1, count - 1)) for place in range(min(count, total))})
    found = []
    for index in chosen:
        sample = samples.sample(index)
        spans = [(int(start), int(end)) for start, end in sample.spans]
        weights = [1.0] * len(spans) if sample.weights is None else [float(weight) for weight in sample.weights]
        found.append(
            RenderedSample(
                row=sample.row,
                tokens=len(sample.ids),
                supervised_tokens=int(samples.supervised[index]),
                segments=segments_of(backend, sample.ids.tolist(), spans, weights),
            )
        )
    return found
