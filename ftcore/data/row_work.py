"""What is done to a chunk of rows, here or in another process: parse, make records, render and tokenise, fit to the length."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ftcore.data.columns import Packed, pack
from ftcore.data.formats.record_kinds import Conversation, PlainText, Record
from ftcore.data.formats.record_maker import RecordMaker
from ftcore.data.overlong import NO_TARGETS, Fitted, fit
from ftcore.data.prepared import ModelSource
from ftcore.data.problems import placed
from ftcore.data.reading.rows import BadRow, Chunk, Row
from ftcore.data.templates.named import template_digest
from ftcore.data.templates.tokenise import Tokenise, make_tokenise
from ftcore.data.tokenizer import tokenizer_digest
from ftcore.data.tokens import Tokens
from ftcore.spec.errors import DataError, Problem
from ftcore.spec.sections import DataSection, DataSet

BAD_ROW = "bad_row"
NOTHING = Fitted(samples=())
"""Of a row that could not be read."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of rows and tokens; they add up over chunks."""

    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_tokens: int = 0
    truncated: int = 0
    split: int = 0
    lost_ends: int = 0
    dropped_turns: int = 0
    repeated_tokens: int = 0
    weighted: int = 0
    """Samples with a weight that isn't 1."""

    def add(self, other: Tally) -> None:
        """Adds the counts of another part of the rows."""
        for name in self.__slots__:
            mine, more = getattr(self, name), getattr(other, name)
            if isinstance(mine, Counter):
                mine.update(more)
            else:
                setattr(self, name, mine + more)


@dataclass(slots=True, kw_only=True)
class Worked:
    """What a chunk became."""

    read: int = 0
    """As the chunk's: bytes of the set's files that were read up to its end."""
    packed: Packed
    tally: Tally
    outcomes: list[str]
    """A line of JSON for each row that isn't as it was."""
    problems: list[Problem]
    """Mistakes in rows, in their order."""
    first_bad: str = ""
    """Why the first row that is left out is; empty without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWork:
    """How the rows of one set become samples; calling it loads the tokenizer."""

    key: str
    """The set's key in the spec."""
    dataset: DataSet
    """With its format decided."""
    data: DataSection
    model: ModelSource

    def __call__(self) -> Callable[[Chunk], Worked]:
        """The function that does a chunk. Raises SpecError or DataError when the tokenizer or the template can't be used."""
        maker = RecordMaker(self.dataset, self.dataset.format, self.key)
        template = self.data.chat_template
        tokenise = _tokeniser(self.model, template, self.data.loss_on, (tokenizer_digest(self.model.path), template_digest(template)))

        def do(chunk: Chunk) -> Worked:
            rows = chunk.rows()
            made = [maker.tried(row) for row in rows]
            tokens = iter(tokenise([each for each in made if not isinstance(each, DataError)]))
            found = [each if isinstance(each, DataError) else next(tokens) for each in made]
            desk = _Desk(self.data)
            for row, record, result in zip(rows, made, found, strict=True):
                desk.take(row, record, result)
            return desk.worked(chunk.read)

        return do


@lru_cache(maxsize=1)
def _tokeniser(model: ModelSource, template: str, loss_on: str, _digests: tuple[str, str]) -> Tokenise:
    """One for all sets of a spec; `_digests` are of the files that it is made of."""
    return make_tokenise(model, template, loss_on)


class _Desk:
    """Decides on one row after the other."""

    def __init__(self, data: DataSection) -> None:
        self._data = data
        self._samples: list[tuple[int, Tokens]] = []
        self._tally = Tally()
        self._outcomes: list[str] = []
        self._problems: list[Problem] = []
        self._first_bad = ""

    def take(self, row: Row | BadRow, record: Record | DataError, result: Tokens | DataError) -> None:
        """Fits a row to data.max_length and counts it."""
        self._tally.rows += 1
        if isinstance(result, DataError):
            self._bad(row, placed(result, file=row.file, row=row.number, line=row.line))
            return
        length, limit = len(result.ids), self._data.max_length
        if length > limit and self._data.overlong == "error":
            what = f"{length} tokens, data.max_length is {limit}"
            fix = "raise data.max_length, or set data.overlong to drop, truncate_right, truncate_left or split"
            self._problems.append(Problem(what=what, file=row.file, line=row.line, where=f"row {row.number}", fix=fix))
            return
        fitted = fit(result, self._data.overlong, limit, is_text=isinstance(record, PlainText))
        self._keep(row, fitted, length, record.roles if fitted.reason == NO_TARGETS and isinstance(record, Conversation) else "")

    def worked(self, read: int) -> Worked:
        """What the rows became."""
        self._tally.weighted = sum(any(weight != 1 for weight in tokens.weights) for _, tokens in self._samples)
        return Worked(read=read, packed=pack(self._samples), tally=self._tally, outcomes=self._outcomes, problems=self._problems, first_bad=self._first_bad)

    def _bad(self, row: Row | BadRow, problems: Sequence[Problem]) -> None:
        reason = "; ".join(problem.what for problem in problems)
        self._first_bad = self._first_bad or f"row {row.number}: {reason}"
        self._tell(row, "bad", reason)
        if self._data.on_bad_row == "error":
            self._problems.extend(problems)
        else:
            self._tally.dropped[BAD_ROW] += 1

    def _keep(self, row: Row | BadRow, fitted: Fitted, length: int, roles: str) -> None:
        tally = self._tally
        self._samples.extend((row.number, sample) for sample in fitted.samples)
        tally.dropped_tokens += fitted.dropped_tokens
        tally.repeated_tokens += fitted.repeated_tokens
        tally.dropped_turns += fitted.dropped_turns
        tally.lost_ends += fitted.lost_end
        tally.truncated += fitted.outcome == "truncated"
        tally.split += fitted.outcome == "split"
        if fitted.outcome == "dropped":
            tally.dropped[fitted.reason] += 1
            self._first_bad = self._first_bad or (f"row {row.number}: {fitted.reason} (roles: {roles})" if roles else "")
        if fitted.outcome:
            self._tell(row, fitted.outcome, fitted.reason, tokens=length, fitted=fitted, roles=roles)

    def _tell(self, row: Row | BadRow, outcome: str, reason: str, *, tokens: int = 0, fitted: Fitted = NOTHING, roles: str = "") -> None:
        line = {"row": row.number, "file": row.file, "line": row.line, "outcome": outcome, "reason": reason, "tokens": tokens}
        counts = {"samples": len(fitted.samples), "dropped_tokens": fitted.dropped_tokens, "repeated_tokens": fitted.repeated_tokens}
        sequence = {"roles": roles} if roles else {}
        self._outcomes.append(json.dumps({**line, **counts, **sequence}, ensure_ascii=False))
