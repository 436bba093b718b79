"""Rows as they are read -> samples, by the rules that preparation has: formats, template, mask, length, bad rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ftcore.data.cache import Sample
from ftcore.data.formats.record_kinds import PlainText
from ftcore.data.formats.record_maker import RecordMaker
from ftcore.data.model_room import ModelRoom
from ftcore.data.overlong import OVERLONG, fit
from ftcore.data.prepared import ModelSource
from ftcore.data.stream_source import StreamSource
from ftcore.data.templates.tokenise import Tokenise, make_tokenise
from ftcore.data.tokens import Tokens
from ftcore.spec.errors import DataError
from ftcore.spec.sections import DataSection
from ftcore.stream.course import Made
from ftcore.stream.offers import StreamSample
from ftcore.stream.rows import AnyRow, line_of
from ftcore.stream.state import Place


class SampleMaker:
    """Turns rows into samples; the tokenizer is loaded with the first ones."""

    def __init__(self, source: StreamSource, data: DataSection, model: ModelSource) -> None:
        self._source, self._data, self._model = source, data, model
        self._makers = [RecordMaker(each.dataset, each.dataset.format, each.key) for each in source.sets]
        self._tokenise: Tokenise | None = None
        self._room = ModelRoom.of(model)
        self._file_bits = max(1, (len(source.files) - 1).bit_length())

    def __call__(self, rows: Sequence[tuple[Place, AnyRow]]) -> list[Made]:
        """What becomes of each row, in order. Raises SpecError or DataError when tokenizer or template can't be used."""
        if self._tokenise is None:
            self._tokenise = make_tokenise(self._model, self._data.chat_template, self._data.loss_on)
        records = [self._makers[self._source.set_of(place.file)].tried(row) for place, row in rows]
        tokens = iter(self._tokenise([record for record in records if not isinstance(record, DataError)]))
        made: list[Made] = []
        for (place, row), record in zip(rows, records, strict=True):
            result = record if isinstance(record, DataError) else next(tokens)
            if isinstance(result, DataError):
                made.append(self._bad(place, row, result))
            else:
                made.append(self._fitted(place, row, result, is_text=isinstance(record, PlainText)))
        return made

    def _bad(self, place: Place, row: AnyRow, error: DataError) -> Made:
        if self._data.on_bad_row == "drop":
            return Made(dropped=Counter(bad_row=1))
        return Made(error=self._placed(place, row, error))

    def _placed(self, place: Place, row: AnyRow, error: DataError) -> DataError:
        """The error with the file and the line of the row, or its position where there are no lines."""
        file = self._source.files[place.file]
        line = row.line or line_of(file.data_file, place.position)
        return DataError([replace(problem, file=file.name, line=line, where=f"position {place.position}") for problem in error.problems])

    def _fitted(self, place: Place, row: AnyRow, tokens: Tokens, *, is_text: bool) -> Made:
        length = len(tokens.ids)
        if length > self._data.max_length and self._data.overlong == "error":
            fix = "raise data.max_length, or set data.overlong to drop, truncate_right, truncate_left or split"
            return Made(error=self._placed(place, row, DataError(f"{length} tokens, data.max_length is {self._data.max_length}", fix=fix)))
        fitted = fit(tokens, self._data.overlong, self._data.max_length, is_text=is_text)
        if not fitted.samples:
            return Made(dropped=Counter({fitted.reason or OVERLONG: 1}))
        misfit = self._misfit(fitted.samples)
        if misfit is not None:
            return Made(error=self._placed(place, row, misfit))
        truncated = fitted.outcome == "truncated"
        return Made(samples=tuple(self._sample(place, row, sample, truncated=truncated) for sample in fitted.samples))

    def _misfit(self, samples: Sequence[Tokens]) -> DataError | None:
        """Why the model can't take these samples."""
        longest, highest = max(len(sample.ids) for sample in samples), max(int(sample.ids.max()) for sample in samples)
        # Each problem gets the place of its row.
        problems = self._room.misfits("", longest=longest, highest_id=highest)
        return DataError(problems) if problems else None

    def _sample(self, place: Place, row: AnyRow, tokens: Tokens, *, truncated: bool) -> StreamSample:
        spans = np.array(tokens.spans, dtype=np.int32).reshape(-1, 2)
        weights = None if all(weight == 1 for weight in tokens.weights) else np.array(tokens.weights, dtype=np.float32)
        labels = np.maximum(spans[:, 1] - np.maximum(spans[:, 0], 1), 0)
        return StreamSample(
            id=place.position << self._file_bits | place.file,
            sample=Sample(ids=tokens.ids, spans=spans, row=row.number, weights=weights),
            supervised=tokens.supervised,
            weight=float(labels.sum()) if weights is None else float((labels * weights.astype(np.float64)).sum()),
            set=self._source.set_of(place.file),
            truncated=truncated,
        )
