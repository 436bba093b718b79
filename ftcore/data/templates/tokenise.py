"""Records -> the tokens that a model sees, or why a record can't be used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ftcore.data.formats.record_kinds import PlainText, Record, TextPair, TokenIds
from ftcore.data.prepared import ModelSource
from ftcore.data.templates.plain_text import RowAligner
from ftcore.data.templates.rendered import Rendered
from ftcore.data.templates.renderer import ChatRenderer
from ftcore.data.templates.texts import TextRows
from ftcore.data.tokenizer import load_tokenizer
from ftcore.data.tokens import Tokens
from ftcore.spec.errors import DataError

MOST_CHARACTERS = 16_000_000
"""In one row. A tokenizer takes up to 250 bytes for each of them, so that a file without line ends would take all memory."""

Tokenise = Callable[[Sequence[Record]], list[Tokens | DataError]]


def make_tokenise(source: ModelSource, template: str, loss_on: str) -> Tokenise:
    """A function from records to their tokens, or to why a record can't be used.

    `template` is the spec's data.chat_template, `loss_on` its data.loss_on. Raises SpecError or DataError when the tokenizer or the
    template itself can't be used; a missing chat template only once there are messages to render.
    """
    return tokenise_with(load_tokenizer(source.path, trust_remote_code=source.trust_remote_code, chat_template=template), loss_on, template)


def tokenise_with(tokenizer: Any, loss_on: str = "assistant", template: str = "") -> Tokenise:
    """As `make_tokenise`, of a tokenizer that is loaded; `template` names its chat template to the user."""
    aligner, texts = RowAligner(tokenizer), TextRows(tokenizer, loss_on)
    renderer: list[ChatRenderer] = []

    def prepared(record: Record) -> Rendered | Tokens:
        if isinstance(record, TokenIds):
            return texts.tokens(record)
        if isinstance(record, TextPair):
            return texts.pair(record)
        if isinstance(record, PlainText):
            return texts.plain(record)
        if not renderer:
            renderer.append(ChatRenderer(tokenizer, loss_on))
        return renderer[0].render(record)

    def tokenise(records: Sequence[Record]) -> list[Tokens | DataError]:
        results: list[Tokens | DataError | Rendered] = []
        for record in records:
            try:
                results.append(_bounded(prepared(record)))
            except DataError as error:
                results.append(_naming(error, template or "the tokenizer's own"))
        encoded = iter(aligner.encode([result for result in results if isinstance(result, Rendered)]))
        return [next(encoded) if isinstance(result, Rendered) else result for result in results]

    return tokenise


def _bounded(row: Rendered | Tokens) -> Rendered | Tokens:
    """The row. Raises DataError when it is too long to tokenise."""
    if isinstance(row, Rendered) and len(row.text) > MOST_CHARACTERS:
        what = f"a row of {len(row.text):,} characters: at most {MOST_CHARACTERS:,} are tokenised at once"
        raise DataError(what, fix="cut it into several rows; were these many rows, with a line end lost between them?")
    return row


def _naming(error: DataError, template: str) -> DataError:
    """The error, saying which template it is about, if it is about one."""
    return DataError([replace(problem, what=f"{problem.what} (template: {template})") if "template" in problem.what else problem for problem in error.problems])
