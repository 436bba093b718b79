"""What a row becomes: a conversation for a chat template, a pair of texts, one text, or tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ftcore.data.reading.rows import Row

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages for a chat template: roles system, user, assistant and tool, contents as text, tool calls with their arguments as objects."""

    row: Row
    messages: Messages
    tools: list[dict[str, Any]] | None
    """Each {"type": "function", "function": {...}}; None: the row has none."""
    supervised_from: int = 0
    """Assistant turns before this message are context, not answers."""
    weights: dict[int, float] = field(default_factory=dict)
    """Index of an answer -> what each of its tokens counts, where that isn't 1; at 0 it is context."""

    @property
    def roles(self) -> str:
        """The role sequence, for messages to the user."""
        return role_sequence(self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPair:
    """A prompt and what follows it, joined as they are."""

    row: Row
    prompt: str
    completion: str
    weight: float = 1.0
    """What each token of the completion counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainText:
    """A text that is learned whole; one without a visible character teaches nothing."""

    row: Row
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIds:
    """A row that is tokenised already. Ids are 0 or more; whether the model has them all is checked where the tokenizer is known."""

    row: Row
    ids: npt.NDArray[np.int32]
    """[T]"""
    spans: tuple[tuple[int, int], ...]
    """Half-open ranges of `ids` that are learned, in order."""


Record = Conversation | TextPair | PlainText | TokenIds


def role_sequence(messages: Messages) -> str:
    """The roles of messages in their order, one space between."""
    return " ".join(str(message["role"]) for message in messages)
