"""Rows that no chat template renders: pairs of texts, plain texts, tokens."""

from __future__ import annotations

from typing import Any

from ftcore.data.formats.record_kinds import PlainText, TextPair, TokenIds
from ftcore.data.templates.learned import Weighted, everything
from ftcore.data.templates.rendered import Rendered
from ftcore.data.tokens import Tokens
from ftcore.spec.errors import DataError


class TextRows:
    """What a tokenizer makes of texts: its beginning of text in front, its end token behind, each once."""

    def __init__(self, tokenizer: Any, loss_on: str = "assistant") -> None:
        self._eos: str | None = tokenizer.eos_token
        self._size = len(tokenizer)
        self._name = str(tokenizer.name_or_path)
        self._loss_on = loss_on

    def pair(self, pair: TextPair) -> Rendered:
        """A prompt and its completion, which ends with the end token; the prompt counts only with loss_on all.

        Raises DataError without an end token, and for a completion that holds it before its end: it would teach to stop there and to go on.
        """
        completion = self._ended(pair.completion, "completion")
        eos = self._eos or ""
        if eos in completion[: -len(eos)]:
            raise DataError(f"the completion holds the end token {eos!r} before its end", fix="take it out, or write the row as messages: there it is text")
        start = len(pair.prompt)
        learned: Weighted = [((start, start + len(completion)), pair.weight)]
        if self._loss_on == "all":
            learned = [(span, pair.weight) for span, _ in everything(start + len(completion), learned)]
        learned = [(span, weight) for span, weight in learned if weight]
        return Rendered(
            text=pair.prompt + completion,
            spans=tuple(span for span, _ in learned),
            weights=tuple(weight for _, weight in learned),
            cut=bool(learned),
            adds_bos=True,
        )

    def plain(self, row: PlainText) -> Rendered:
        """A text and the end token; every token counts, but none of a blank text's. Raises DataError without an end token."""
        if not row.text.strip():
            return Rendered(text=row.text, spans=(), weights=(), adds_bos=True)
        text = self._ended(row.text, "text")
        return Rendered(text=text, spans=((0, len(text)),), weights=(1.0,), adds_bos=True)

    def tokens(self, row: TokenIds) -> Tokens:
        """The tokens as they are. Raises DataError when the tokenizer has no such token."""
        highest = int(row.ids.max())
        if highest >= self._size:
            raise DataError(f"token id {highest} is none of the {self._size} of the tokenizer {self._name}", fix="tokenise the row with this model's tokenizer")
        return Tokens(ids=row.ids, spans=row.spans, weights=(1.0,) * len(row.spans))

    def _ended(self, text: str, kind: str) -> str:
        if not self._eos:
            raise DataError(
                f"the tokenizer has no eos_token, so a {kind} can't be ended",
                where="model.model_name_or_path",
                fix="set eos_token in the model's tokenizer_config.json",
            )
        return text if text.endswith(self._eos) else text + self._eos
