"""Control tokens whose text stands in somebody's message: there it is text, never the token."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ftcore.data.templates.rendering import CharSpan
from ftcore.spec.errors import DataError

NO_CONTROL = re.compile(r"</?(?:think|tool_call|tool_response)>|<0x[0-9A-F]{2}>")
"""Tokens that are written in contents on purpose, and bytes of characters that have no token."""


class ControlTokens:
    """The tokens of a tokenizer that only a chat template may write: all that it calls special."""

    def __init__(self, tokenizer: Any) -> None:
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special} | set(tokenizer.all_special_tokens)
        self._name = str(tokenizer.name_or_path)
        self._texts = sorted((text for text in special if text and not NO_CONTROL.fullmatch(text)), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._texts)) or "(?!)")

    def first_in(self, text: str) -> str:
        """The first control token that the text spells; empty when it spells none."""
        match = self._pattern.search(text)
        return match[0] if match else ""

    def spelt_in(self, text: str, start: int, end: int) -> Iterator[CharSpan]:
        """Where a part of a text spells control tokens."""
        for match in self._pattern.finditer(text, start, end):
            yield match.span()

    def refused(self, token: str) -> DataError:
        """What is said of a row whose text can't be kept apart from the template's."""
        return DataError(
            f"a text of the row spells the control token {token!r}, and it can't be told from those that the chat template writes",
            fix="take it out of the row, or write it in another way",
        )

    def renamed(self, backend: Any) -> tuple[Any, dict[str, str]]:
        """A copy of the tokenizer in which the control tokens have names that no text spells, and token -> name.

        In it the texts of the control tokens are text like any other.
        """
        from tokenizers import Tokenizer

        names = {text: f"\ue000{number}\ue001" for number, text in enumerate(self._texts)}
        stored = json.loads(backend.to_str())
        for token in stored["added_tokens"]:
            token["content"] = names.get(token["content"], token["content"])
        return Tokenizer.from_str(json.dumps(stored)), names
