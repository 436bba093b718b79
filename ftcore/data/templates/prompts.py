"""A conversation up to where its answer begins, in the tokens that training showed for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ftcore.data.templates.plain_text import RowAligner
from ftcore.data.templates.renderer import ChatRenderer
from ftcore.data.templates.rendering import Message, Tools
from ftcore.spec.errors import DataError

Prompt = Callable[[list[Message], Tools], tuple[int, ...]]


def prompt_tokens(tokenizer: Any, messages: list[Message], tools: Tools) -> tuple[int, ...]:
    """The tokens of messages with the generation prompt. Raises DataError when the template refuses them."""
    return _made(tokenizer, str(tokenizer.chat_template))(messages, tools)


@lru_cache(maxsize=2)
def _made(tokenizer: Any, template: str) -> Prompt:
    renderer, aligner = ChatRenderer(tokenizer), RowAligner(tokenizer)

    def prompt(messages: list[Message], tools: Tools) -> tuple[int, ...]:
        (tokens,) = aligner.encode([renderer.prompt(messages, tools)])
        if isinstance(tokens, DataError):
            raise tokens
        return tuple(tokens.ids.tolist())

    return prompt
