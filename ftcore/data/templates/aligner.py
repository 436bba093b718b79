"""Text with supervised characters -> token ids with supervised tokens, exact or refused.

A label mask made from token ids (all end tokens, all pads) goes wrong as soon as two roles share an id; here it comes from character positions.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ftcore.data.templates.chosen import added_in_front
from ftcore.data.templates.rendered import Rendered
from ftcore.data.templates.rendering import CharSpan
from ftcore.data.tokens import Tokens, TokenSpan
from ftcore.spec.errors import DataError

Part = tuple[int, Any]
"""Where a part of a row's text begins, and its encoding."""
SPACE_MARK = "\u2581"
SAMPLES = ("a b", "The answer is 12, or not?\n")
"""Texts that a tokenizer must be able to write, if its decoding is to prove anything."""


def _pieces(row: Rendered) -> list[str]:
    """The row's text cut at each answer's start."""
    edges = [0, *(start for start, _ in row.spans), len(row.text)]
    return [row.text[start:end] for start, end in itertools.pairwise(edges)]


class Aligner:
    """Tokenises rendered rows with one tokenizer and proves where the supervised tokens are."""

    def __init__(self, tokenizer: Any, *, backend: Any = None) -> None:
        """`backend`: what tokenises in the place of the tokenizer's own."""
        from tokenizers import decoders

        self._backend = tokenizer.backend_tokenizer if backend is None else backend
        self._backend.no_truncation()
        self._backend.no_padding()
        self._name = str(tokenizer.name_or_path)
        self._bos_id: int | None = tokenizer.bos_token_id if backend is None else None
        self._leading = added_in_front(self._backend)
        added = self._backend.get_added_tokens_decoder().values()
        self._marked = re.compile(f"({'|'.join(re.escape(token.content) for token in added) or '(?!)'}) ?")
        swallowing = [re.escape(token.content) for token in added if token.rstrip]
        self._swallowed = re.compile(f"({'|'.join(swallowing)})\\s+" if swallowing else "(?!)()")
        # Byte-level tokens decode to the same text wherever they stand; others may lose a space at the beginning.
        self._decodes_locally = isinstance(self._backend.decoder, decoders.ByteLevel)
        self._decodes = all(self._same(self._backend.decode(self._encode(text).ids, skip_special_tokens=False), text) for text in SAMPLES)

    def encode(self, batch: Sequence[Rendered]) -> list[Tokens | DataError]:
        """Ids and supervised token ranges of each row, or why the row can't be tokenised exactly.

        A row is tokenised whole. Where a token would cross the start of an answer, the row is tokenised apart there, which is what
        generation sees: the prompt is tokenised before the answer exists. The supervised tokens are then decoded: they must give the
        supervised text.
        """
        pieces = [_pieces(row) if row.cut else [row.text] for row in batch]
        encodings = iter(self._backend.encode_batch([piece for row in pieces for piece in row], add_special_tokens=False))
        return self._proved(batch, [self._finish(row, [next(encodings) for _ in parts]) for row, parts in zip(batch, pieces, strict=True)])

    def _proved(self, batch: Sequence[Rendered], results: list[Tokens | DataError]) -> list[Tokens | DataError]:
        """The rows whose supervised tokens decode to their text; for a tokenizer that can't decode, the offsets are the proof."""
        if not self._decodes:
            return results
        checked = [
            (number, *span)
            for number, tokens in enumerate(results)
            if isinstance(tokens, Tokens)
            for span in zip(tokens.spans, batch[number].spans, strict=True)
        ]
        lead = 0 if self._decodes_locally else 1
        ids = [row.ids.tolist() if isinstance(row, Tokens) else [] for row in results]
        decoded = self._backend.decode_batch([ids[number][max(0, first - lead) : last] for number, (first, last), _ in checked], skip_special_tokens=False)
        before = self._backend.decode_batch([ids[number][max(0, first - lead) : first] for number, (first, _), _ in checked], skip_special_tokens=False)
        for (number, (first, last), (start, end)), whole, front in zip(checked, decoded, before, strict=True):
            text, found = batch[number].text[start:end], whole[len(front) :]
            # A tokenizer may put a space before the first character of a text.
            if self._same(found, text) or (start == 0 and self._same(found, " " + text)):
                continue
            if not self._same(self._decoded(ids[number], first, last), text):
                results[number] = DataError(
                    f"the tokenizer {self._name} can't write an answer: its tokens decode to {self._decoded(ids[number], first, last)[:80]!r}",
                    fix="take the characters that the tokenizer doesn't know out of the row",
                )
        return results

    def _finish(self, row: Rendered, encodings: list[Any]) -> Tokens | DataError:
        if not row.cut:
            whole = self._exact(encodings[0], row.spans, len(row.text))
            if whole is not None:
                return self._checked(row, list(encodings[0].ids), whole, self._turns(row, [(0, encodings[0])]))
            encodings = [self._encode(piece) for piece in _pieces(row)]
        parts, spans = self._apart(row, encodings)
        ids = [token for _, part in parts for token in part.ids]
        if self._proven(row, ids, spans):
            return self._checked(row, ids, spans, self._turns(row, parts))
        encoding = self._encode(row.text)
        whole = self._exact(encoding, row.spans, len(row.text))
        if whole is not None:
            return self._checked(row, list(encoding.ids), whole, self._turns(row, [(0, encoding)]))
        return DataError(
            f"the tokenizer {self._name} joins the prompt and the answer in one token, and changes the text when they are tokenised apart",
            fix="put a separator that is a token of its own between prompt and answer (in the chat template, or in the prompt)",
        )

    def _checked(self, row: Rendered, ids: list[int], spans: list[TokenSpan], turns: tuple[int, ...]) -> Tokens | DataError:
        if row.adds_bos and ids[: len(self._leading)] != self._leading:
            shift = len(self._leading)
            ids, spans = self._leading + ids, [(start + shift, end + shift) for start, end in spans]
        if self._bos_id is not None and ids[:2] == [self._bos_id] * 2:
            return DataError(
                f"the text begins with two beginning-of-text tokens (id {self._bos_id})",
                fix="the chat template or the prompt writes the token twice: remove one",
            )
        front = len(self._leading) if ids[: len(self._leading)] == self._leading else 0
        return Tokens(ids=np.array(ids, dtype=np.int32), spans=tuple(spans), weights=row.weights, turns=turns, front=front)

    def _turns(self, row: Rendered, parts: Sequence[Part]) -> tuple[int, ...]:
        """The tokens at which turns begin; empty when one of them begins inside a token."""
        found: list[int] = []
        for start in row.turns:
            number = max(number for number, (begin, _) in enumerate(parts) if begin <= start)
            begin, encoding = parts[number]
            token = 0 if begin == start else self._first_token(encoding, start - begin, len(row.text))
            if token is None:
                return ()
            found.append(sum(len(part) for _, part in parts[:number]) + token)
        return tuple(found)

    def _exact(self, encoding: Any, spans: Sequence[CharSpan], length: int) -> list[TokenSpan] | None:
        """Token ranges whose outer edges are the spans' edges; None when a token crosses one, or the offsets leave it open."""
        found: list[TokenSpan] = []
        for start, end in spans:
            first, last = self._first_token(encoding, start, length), self._last_token(encoding, end)
            if first is None or last is None or last < first:
                return None
            found.append((first, last + 1))
        return found

    def _first_token(self, encoding: Any, start: int, length: int) -> int | None:
        token = encoding.char_to_token(start) if start < length else None
        if token is None:
            return None
        offsets = encoding.token_to_chars
        while token > 0 and offsets(token - 1)[0] == start < offsets(token - 1)[1]:
            token -= 1
        # A gap before the token is white space that the offsets leave out and the token may hold.
        before = offsets(token - 1)[1] if token > 0 else 0
        return int(token) if offsets(token)[0] == start == before else None

    def _last_token(self, encoding: Any, end: int) -> int | None:
        token = encoding.char_to_token(end - 1)
        if token is None:
            return None
        count = len(encoding)
        offsets = encoding.token_to_chars
        while token + 1 < count and offsets(token + 1)[0] < end:
            token += 1
        return int(token) if offsets(token)[1] == end or self._swallows_space(encoding, token, end) else None

    def _swallows_space(self, encoding: Any, token: int, end: int) -> bool:
        """Some end tokens take the white space after them; it is no text of its own then."""
        start, stop = encoding.token_to_chars(token)
        content = self._backend.id_to_token(encoding.ids[token])
        return bool(start + len(content) == end < stop)

    def _apart(self, row: Rendered, encodings: list[Any]) -> tuple[list[Part], list[TokenSpan]]:
        """The row tokenised apart at each answer's start (and at its end, where a token would cross that), and the answers' tokens."""
        parts: list[Part] = [(0, encodings[0])]
        spans: list[TokenSpan] = []
        following = [start for start, _ in row.spans[1:]] + [len(row.text)]
        count = len(encodings[0])
        for (start, end), until, encoding in zip(row.spans, following, encodings[1:], strict=True):
            last = self._last_token(encoding, end - start)
            if last is not None:
                added, size = [(start, encoding)], last + 1
            else:
                answer = self._encode(row.text[start:end])
                added, size = [(start, answer), (end, self._encode(row.text[end:until]))], len(answer)
            spans.append((count, count + size))
            parts += added
            count += sum(len(part) for _, part in added)
        return parts, spans

    def _encode(self, text: str) -> Any:
        return self._backend.encode(text, add_special_tokens=False)

    def _proven(self, row: Rendered, ids: list[int], spans: list[TokenSpan]) -> bool:
        """Whether the supervised tokens, decoded where they stand, are the supervised text: tokenising apart may have added a space."""
        return all(self._same(self._decoded(ids, first, last), row.text[start:end]) for (first, last), (start, end) in zip(spans, row.spans, strict=True))

    def _decoded(self, ids: list[int], first: int, last: int) -> str:
        if self._decodes_locally:
            return str(self._backend.decode(ids[first:last], skip_special_tokens=False))
        before = self._backend.decode(ids[:first], skip_special_tokens=False)
        return str(self._backend.decode(ids[:last], skip_special_tokens=False)[len(before) :])

    def _same(self, decoded: str, text: str) -> bool:
        """Whether tokens that decode so hold the text: as it is, or normalised and without the white space that special tokens swallow."""
        if decoded == text:
            return True
        normalizer = self._backend.normalizer
        kept = self._swallowed.sub(r"\1", text)
        if decoded == kept or (normalizer is not None and normalizer.normalize_str(decoded) == normalizer.normalize_str(kept)):
            return True
        return not self._decodes_locally and self._without_marks(decoded) == self._without_marks(kept)

    def _without_marks(self, text: str) -> str:
        """To these tokenizers a space and the character they mark it with are one, and they may put one after a control token."""
        return self._marked.sub(r"\1", text.replace(SPACE_MARK, " "))
