"""Text with supervised characters -> token ids with supervised tokens, exact or refused.

A label mask made from token ids (all end tokens, all pads) goes wrong as soon as two roles share an id; here it comes from character positions.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ftcore.data.chat import CharSpan, Rendered
from ftcore.data.fields import TextPair
from ftcore.spec.errors import DataError

Int32Array = npt.NDArray[np.int32]
TokenSpan = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """One row as the model sees it."""

    ids: Int32Array
    """[T]"""
    spans: tuple[TokenSpan, ...]
    """Half-open token ranges that are supervised, in order."""
    weights: tuple[float, ...]
    """What each token of a range counts, over 0; one a range."""
    turns: tuple[int, ...] = ()
    """Token positions where a turn (a user message and what follows it) begins, the first being the end of the head (beginning of text,
    system message, tools); empty where the row has no turns, or they can't be cut apart."""

    front: int = 0
    """Tokens in front that the tokenizer begins every text with (beginning of text): what a cut on the left keeps."""

    @property
    def supervised(self) -> int:
        """Labels that count: a label is predicted from the token before it, so position 0 never counts."""
        return count_supervised(self.spans)


def _pieces(row: Rendered) -> list[str]:
    """The row's text cut at each answer's start."""
    edges = [0, *(start for start, _ in row.spans), len(row.text)]
    return [row.text[start:end] for start, end in itertools.pairwise(edges)]


def count_supervised(spans: Sequence[TokenSpan]) -> int:
    """Supervised tokens of half-open ranges after the shift."""
    return sum(end - max(start, 1) for start, end in spans if end > max(start, 1))


class Aligner:
    """Tokenises rendered rows with one tokenizer and proves where the supervised tokens are."""

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers import decoders

        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._name = str(tokenizer.name_or_path)
        self._bos_id: int | None = tokenizer.bos_token_id
        self._eos: str | None = tokenizer.eos_token
        self._leading = self._added_in_front()
        swallowing = [re.escape(token.content) for token in tokenizer.added_tokens_decoder.values() if token.rstrip]
        self._swallowed = re.compile(f"({'|'.join(swallowing)})\\s+" if swallowing else "(?!)()")
        # Byte-level tokens decode to the same text wherever they stand; others may lose a space at the beginning.
        self._decodes_locally = isinstance(self._backend.decoder, decoders.ByteLevel)

    def pair(self, pair: TextPair) -> Rendered:
        """A prompt and its completion as text; the completion ends with the end token, once. Raises DataError without an end token."""
        if not self._eos:
            raise DataError(
                "the tokenizer has no eos_token, so a completion can't be ended",
                where="model.model_name_or_path",
                fix="set eos_token in the model's tokenizer_config.json",
            )
        completion = pair.completion if pair.completion.endswith(self._eos) else pair.completion + self._eos
        start = len(pair.prompt)
        spans, weights = (((start, start + len(completion)),), (pair.weight,)) if pair.weight else ((), ())
        return Rendered(text=pair.prompt + completion, spans=spans, weights=weights, cut=bool(spans), adds_bos=True)

    def encode(self, batch: Sequence[Rendered]) -> list[Tokens | DataError]:
        """Ids and supervised token ranges of each row, or why the row can't be tokenised exactly.

        A row is tokenised whole. Where a token would cross the start of an answer, the row is tokenised apart there, which is what
        generation sees: the prompt is tokenised before the answer exists.
        """
        pieces = [_pieces(row) if row.cut else [row.text] for row in batch]
        encodings = iter(self._backend.encode_batch([piece for row in pieces for piece in row], add_special_tokens=False))
        return [self._finish(row, [next(encodings) for _ in parts]) for row, parts in zip(batch, pieces, strict=True)]

    def _finish(self, row: Rendered, encodings: list[Any]) -> Tokens | DataError:
        if not row.cut:
            whole = self._exact(encodings[0], row.spans, len(row.text))
            if whole is not None:
                return self._checked(row, list(encodings[0].ids), whole)
            encodings = [self._encode(piece) for piece in _pieces(row)]
        ids, spans = self._apart(row, encodings)
        if self._proven(row, ids, spans):
            return self._checked(row, ids, spans)
        encoding = self._encode(row.text)
        whole = self._exact(encoding, row.spans, len(row.text))
        if whole is not None:
            return self._checked(row, list(encoding.ids), whole)
        return DataError(
            f"the tokenizer {self._name} joins the prompt and the answer in one token, and changes the text when they are tokenised apart",
            fix="put a separator that is a token of its own between prompt and answer (in the chat template, or in the prompt)",
        )

    def _checked(self, row: Rendered, ids: list[int], spans: list[TokenSpan]) -> Tokens | DataError:
        if row.adds_bos and ids[: len(self._leading)] != self._leading:
            shift = len(self._leading)
            ids, spans = self._leading + ids, [(start + shift, end + shift) for start, end in spans]
        if self._bos_id is not None and ids[:2] == [self._bos_id] * 2:
            return DataError(
                f"the text begins with two beginning-of-text tokens (id {self._bos_id})",
                fix="the chat template or the prompt writes the token twice: remove one",
            )
        front = len(self._leading) if ids[: len(self._leading)] == self._leading else 0
        return Tokens(ids=np.array(ids, dtype=np.int32), spans=tuple(spans), weights=row.weights, front=front)

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

    def _apart(self, row: Rendered, encodings: list[Any]) -> tuple[list[int], list[TokenSpan]]:
        """Ids of the row tokenised apart at each answer's start (and at its end, where a token would cross that)."""
        ids: list[int] = list(encodings[0].ids)
        spans: list[TokenSpan] = []
        following = [start for start, _ in row.spans[1:]] + [len(row.text)]
        for (start, end), until, encoding in zip(row.spans, following, encodings[1:], strict=True):
            last = self._last_token(encoding, end - start)
            if last is not None:
                answer, rest = list(encoding.ids), []
                size = last + 1
            else:
                answer, rest = list(self._encode(row.text[start:end]).ids), list(self._encode(row.text[end:until]).ids)
                size = len(answer)
            spans.append((len(ids), len(ids) + size))
            ids += answer + rest
        return ids, spans

    def _encode(self, text: str) -> Any:
        return self._backend.encode(text, add_special_tokens=False)

    def _proven(self, row: Rendered, ids: list[int], spans: list[TokenSpan]) -> bool:
        """Whether the supervised tokens, decoded where they stand, are the supervised text: tokenising apart may have added a space."""
        return all(self._decoded(ids, first, last) in self._as_held(row.text[start:end]) for (first, last), (start, end) in zip(spans, row.spans, strict=True))

    def _decoded(self, ids: list[int], first: int, last: int) -> str:
        if self._decodes_locally:
            return str(self._backend.decode(ids[first:last], skip_special_tokens=False))
        before = self._backend.decode(ids[:first], skip_special_tokens=False)
        return str(self._backend.decode(ids[:last], skip_special_tokens=False)[len(before) :])

    def _as_held(self, text: str) -> tuple[str, str]:
        """The text as it is, and as the tokens hold it: normalised, without the white space that special tokens swallow."""
        kept = self._swallowed.sub(r"\1", text)
        normalizer = self._backend.normalizer
        return text, kept if normalizer is None else str(normalizer.normalize_str(kept))

    def _added_in_front(self) -> list[int]:
        """The ids that the tokenizer itself puts before a text: its beginning-of-text token, or nothing."""
        plain = self._backend.encode("a", add_special_tokens=False).ids
        whole = self._backend.encode("a", add_special_tokens=True).ids
        at = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
        return list(whole[:at])
