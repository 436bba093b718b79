"""Rows read and tokenised here, without the cache: of a stream, which is never prepared whole, and of a set whose preparation leaves nothing."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ftcore.data.cache import Counts, write_samples
from ftcore.data.formats.record_kinds import PlainText, Record
from ftcore.data.formats.record_maker import RecordMaker
from ftcore.data.overlong import Fitted, fit
from ftcore.data.prepared import ModelSource, PreparedSet
from ftcore.data.reading.reader import read_chunks
from ftcore.data.reading.rows import BadRow, Row, Source
from ftcore.data.templates.tokenise import make_tokenise
from ftcore.data.tokens import Tokens
from ftcore.data_report.outcomes import BAD, DROPPED
from ftcore.spec.errors import DataError
from ftcore.spec.events import emit
from ftcore.spec.sections import DataSection, DataSet

Read = tuple[Row | BadRow, Record | DataError]
"""A row, and what it is or why it is nothing."""


@dataclass(slots=True)
class _Scan:
    """What was found so far."""

    lines: IO[str]
    """Gets a line for each row that is not kept as it is."""
    rows: int = 0
    samples: list[tuple[int, Tokens]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    dropped_tokens: int = 0
    repeated_tokens: int = 0
    lost_ends: int = 0

    def note(self, row: Row | BadRow, outcome: str, reason: str, tokens: int) -> None:
        """Writes down what became of a row."""
        line = {"row": row.number, "file": row.file, "line": row.line, "outcome": outcome, "reason": reason, "tokens": tokens}
        self.lines.write(json.dumps(line, ensure_ascii=False) + "\n")

    def add(self, row: Row | BadRow, found: Tokens | DataError, fitted: Fitted | None) -> None:
        """Counts one row; `fitted`: what its tokens became."""
        self.rows += 1
        if isinstance(found, DataError) or fitted is None:
            self.dropped["bad_row"] += 1
            reasons = found.problems if isinstance(found, DataError) else ()
            self.note(row, BAD, "; ".join(problem.what for problem in reasons), 0)
            return
        self.dropped_tokens += fitted.dropped_tokens
        self.repeated_tokens += fitted.repeated_tokens
        self.lost_ends += fitted.lost_end
        self.samples += [(row.number, sample) for sample in fitted.samples]
        if fitted.outcome:
            self.note(row, fitted.outcome, fitted.reason, len(found.ids))
        if fitted.outcome == DROPPED:
            self.dropped[fitted.reason] += 1
        elif fitted.outcome:
            self.changed[fitted.outcome] += 1


def scan(dataset: DataSet, key: str, data: DataSection, source: Source, model: ModelSource, folder: Path, *, most: int | None = None) -> PreparedSet:
    """The first `most` rows (None: all) of a set whose format is decided, prepared into `folder` in this process. All samples are held in memory.

    Raises DataError when the files can't be read, SpecError when the tokenizer can't be used.
    """
    maker, tokenise = RecordMaker(dataset, dataset.format, key), make_tokenise(model, data.chat_template, data.loss_on)
    folder.mkdir(parents=True, exist_ok=True)
    outcomes, arrow = folder / "outcomes.jsonl", folder / "samples.arrow"
    with outcomes.open("w", encoding="utf-8", errors="backslashreplace") as lines:
        found = _Scan(lines)
        for chunk in read_chunks(source):
            rows = chunk.rows()
            read: list[Read] = [(row, maker.tried(row)) for row in (rows if most is None else rows[: most - found.rows])]
            tokens = iter(tokenise([record for _, record in read if not isinstance(record, DataError)]))
            for row, record in read:
                result = record if isinstance(record, DataError) else next(tokens)
                is_text = isinstance(record, PlainText)
                found.add(row, result, None if isinstance(result, DataError) else fit(result, data.overlong, data.max_length, is_text=is_text))
            emit("progress", stage="report", done=found.rows, total=most or 0, text=f"{key}: reading")
            if most is not None and found.rows >= most:
                break
    prepared = _prepared(found, dataset, source, outcomes, arrow)
    if found.samples:
        _write(arrow, found, prepared)
    return prepared


def _prepared(found: _Scan, dataset: DataSet, source: Source, outcomes: Path, arrow: Path) -> PreparedSet:
    return PreparedSet(
        arrow=str(arrow) if found.samples else "",
        samples=len(found.samples),
        rows=found.rows,
        tokens=sum(len(tokens.ids) for _, tokens in found.samples),
        supervised_tokens=sum(tokens.supervised for _, tokens in found.samples),
        dropped=dict(sorted(found.dropped.items())),
        dropped_tokens=found.dropped_tokens,
        truncated=found.changed["truncated"],
        format=dataset.format,
        files=tuple(file.name for file in source.files),
        bad_rows=found.dropped["bad_row"],
        split=found.changed["split"],
        lost_ends=found.lost_ends,
        repeated_tokens=found.repeated_tokens,
        outcomes=str(outcomes),
    )


def _write(arrow: Path, found: _Scan, prepared: PreparedSet) -> None:
    counts = Counts(rows=prepared.rows, tokens=prepared.tokens, supervised_tokens=prepared.supervised_tokens)
    samples = [tokens for _, tokens in found.samples]
    write_samples(
        arrow, [each.ids for each in samples], [each.spans for each in samples], [row for row, _ in found.samples], counts, [each.weights for each in samples]
    )
