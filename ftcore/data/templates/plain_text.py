"""Rows in whose messages the text of a control token stands: tokenised so that only the chat template's own become the token."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ftcore.data.templates.aligner import Aligner
from ftcore.data.templates.chosen import added_in_front
from ftcore.data.templates.control import ControlTokens
from ftcore.data.templates.rendered import Rendered
from ftcore.data.tokens import Tokens
from ftcore.spec.errors import DataError


class RowAligner:
    """Aligns rows of both kinds: those that spell a control token in plain text, and the others."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._usual = Aligner(tokenizer)
        self._renamed: PlainTextAligner | None = None

    def encode(self, batch: Sequence[Rendered]) -> list[Tokens | DataError]:
        """As Aligner.encode, of rows that may have `plain` texts."""
        if not any(row.plain for row in batch):
            return self._usual.encode(batch)
        if self._renamed is None:
            self._renamed = PlainTextAligner(self._tokenizer)
        usual = iter(self._usual.encode([row for row in batch if not row.plain]))
        plain = iter(self._renamed.encode([row for row in batch if row.plain]))
        return [next(plain) if row.plain else next(usual) for row in batch]


def _own_ids(backend: Any, own: Any, names: Mapping[str, str]) -> npt.NDArray[np.int32]:
    """int32 [ids of the copy]: the id that the tokenizer itself has for each id of its copy.

    The copy gives new ids to renamed tokens that the model's own vocabulary holds too, and with that to tokens that were added behind those.
    """
    ids = np.arange(1 + max(backend.get_vocab().values()), dtype=np.int32)
    for token in own.get_added_tokens_decoder().values():
        ids[backend.token_to_id(names.get(token.content, token.content))] = own.token_to_id(token.content)
    return ids


class PlainTextAligner:
    """Tokenises with a copy of the tokenizer whose control tokens have other names: what the messages spell is no name of a token there."""

    def __init__(self, tokenizer: Any) -> None:
        own = tokenizer.backend_tokenizer
        self._control = ControlTokens(tokenizer)
        backend, self._names = self._control.renamed(own)
        self._aligner = Aligner(tokenizer, backend=backend)
        self._leading = added_in_front(own)
        self._ids = _own_ids(backend, own, self._names)
        self._control_ids = np.array(sorted({own.token_to_id(token) for token in self._names}), dtype=np.int32)

    def encode(self, batch: Sequence[Rendered]) -> list[Tokens | DataError]:
        """As Aligner.encode; a row is refused when the tokenizer makes a control token of plain text after all."""
        rows = [self._renamed(row) for row in batch]
        results = self._aligner.encode([row for row, _ in rows])
        return [self._own(row, written, result) for row, (_, written), result in zip(batch, rows, results, strict=True)]

    def _own(self, row: Rendered, written: int, result: Tokens | DataError) -> Tokens | DataError:
        if isinstance(result, DataError):
            return result
        ids = self._ids[result.ids]
        if int(np.isin(ids, self._control_ids).sum()) != written:
            return self._control.refused(row.text[slice(*row.plain[0])])
        front = len(self._leading) if ids[: len(self._leading)].tolist() == self._leading else 0
        return replace(result, ids=ids, front=front)

    def _renamed(self, row: Rendered) -> tuple[Rendered, int]:
        """The row with the template's control tokens under their other names, and how many they are."""
        spelt = set(row.plain)
        edges, pieces, at, longer = [0], [], 0, 0
        shifts = [0]
        for start, end in self._control.spelt_in(row.text, 0, len(row.text)):
            if (start, end) in spelt:
                continue
            name = self._names[row.text[start:end]]
            pieces += [row.text[at:start], name]
            at, longer = end, longer + len(name) - (end - start)
            edges.append(end)
            shifts.append(longer)
        moved: Callable[[int], int] = lambda character: character + shifts[bisect_right(edges, character) - 1]  # noqa: E731
        renamed = replace(
            row,
            text="".join([*pieces, row.text[at:]]),
            spans=tuple((moved(start), moved(end)) for start, end in row.spans),
            turns=tuple(moved(start) for start in row.turns),
            plain=(),
        )
        return renamed, len(edges) - 1
