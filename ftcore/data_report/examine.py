"""One set of a spec prepared as a launch would do it; what a launch would refuse is told, and then passed over as far as that goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ftcore.data.build import prepare_set
from ftcore.data.formats.decide import decide_format
from ftcore.data.formats.record_kinds import Record
from ftcore.data.formats.record_maker import RecordMaker
from ftcore.data.lengths import note_lengths
from ftcore.data.prepared import ModelSource, PreparedSet
from ftcore.data.reading.find import find_files
from ftcore.data.reading.rows import Row, Source
from ftcore.data.reading.splits import Purpose
from ftcore.data_report.facts import TemplateFacts
from ftcore.data_report.first_rows import first_rows
from ftcore.data_report.scan import scan
from ftcore.data_report.template_facts import template_facts
from ftcore.prepare import check_fits
from ftcore.spec.errors import DataError, Problem
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import DataSection, DataSet

STREAMED_ROWS = 5000
"""Rows of a stream that a report looks at."""
UNREAD = "messages"
"""Stands for the format of a set without a row that can be read."""
NOTHING = PreparedSet(arrow="", samples=0, rows=0, tokens=0, supervised_tokens=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A set, and why training would refuse it."""

    prepared: PreparedSet
    format_reason: str = ""
    revision: str = ""
    template: TemplateFacts | None = None
    refusals: tuple[Problem, ...] = ()


class Examiner:
    """Looks at the sets of one spec."""

    def __init__(self, resolved: ResolvedSpec, model: ModelSource, tokenizer: Any, scratch: Path) -> None:
        """`scratch`: a folder for what is not to be kept."""
        self._spec = resolved.spec
        self._data = resolved.spec.data
        self._model = model
        self._tokenizer = tokenizer
        self._cache_dir = Path(resolved.cache_dir)
        self._scratch = scratch

    def examine(self, key: str, dataset: DataSet) -> Examined:
        """The set that the spec calls `key`. Raises SpecError when the tokenizer can't be used; what is wrong with the data is told in the result."""
        purpose: Purpose = "train" if key in self._data.keyed_training else "eval"
        try:
            source = find_files(dataset, key, purpose=purpose, cache_dir=self._cache_dir)
            first = first_rows(source)
            # Of rows that can't be read none tells a format, and none needs one.
            decided, reason = decide_format(dataset, first, key) if first else (replace(dataset, format=UNREAD), "")
        except DataError as error:
            return Examined(prepared=NOTHING, refusals=error.problems)
        prepared, refusals = self._prepare(key, dataset, decided, source, streamed=self._data.streaming and purpose == "train")
        if not first:
            prepared = replace(prepared, format="")
        template = template_facts(self._tokenizer, self._data.chat_template, self._data.loss_on, records_of(first, decided, key))
        return Examined(prepared=prepared, format_reason=reason, revision=source.revision, template=template, refusals=refusals)

    def _prepare(self, key: str, dataset: DataSet, decided: DataSet, source: Source, *, streamed: bool) -> tuple[PreparedSet, tuple[Problem, ...]]:
        """The set as far as it can be prepared, and why training would refuse it."""
        if streamed:
            seen = self._scan(key, decided, source, most=STREAMED_ROWS)
            return seen, tuple(stream_refusals(key, seen, self._data))
        refusals: tuple[Problem, ...] = ()
        lenient = replace(self._data, on_bad_row="drop", overlong="drop" if self._data.overlong == "error" else self._data.overlong)
        for data in (self._data, lenient) if lenient != self._data else (self._data,):
            try:
                prepared = prepare_set(key, dataset, data, self._model, self._cache_dir)
            except DataError as error:
                refusals = refusals or error.problems
                continue
            if data is self._data:
                note_lengths(prepared, dataset, data, self._spec.model, self._cache_dir)
            try:
                check_fits(key, prepared, self._model)
            except DataError as error:
                refusals += error.problems
            return prepared, refusals
        return self._scan(key, decided, source, most=None), refusals

    def _scan(self, key: str, decided: DataSet, source: Source, *, most: int | None) -> PreparedSet:
        try:
            return scan(decided, key, self._data, source, self._model, self._scratch / key, most=most)
        except DataError:
            # Files that can't be read to their end: the refusals say so.
            return replace(NOTHING, format=decided.format, files=tuple(file.name for file in source.files))


def stream_refusals(key: str, seen: PreparedSet, data: DataSection) -> Iterator[Problem]:
    """Why a run would stop within the rows of a stream that were looked at."""
    if data.on_bad_row == "error" and seen.bad_rows:
        fix = "mend the rows, or set data.on_bad_row: drop"
        yield Problem(what=f"{seen.bad_rows:,} of the first {seen.rows:,} rows are bad, and data.on_bad_row is error", where=key, fix=fix)
    if data.overlong == "error" and (longer := seen.dropped.get("overlong")):
        fix = "raise data.max_length, or set data.overlong to another rule"
        yield Problem(what=f"{longer:,} of the first {seen.rows:,} rows are longer than data.max_length, and data.overlong is error", where=key, fix=fix)


def records_of(rows: Sequence[Row], decided: DataSet, key: str) -> list[Record]:
    """The records of those rows that can be used."""
    maker = RecordMaker(decided, decided.format, key)
    return [made for row in rows if not isinstance(made := maker.tried(row), DataError)]
