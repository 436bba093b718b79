"""A tokenizer's chat template as a function from messages to text, the same as at serving."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

from ftcore.data.formats.tools import with_text_arguments
from ftcore.spec.errors import DataError

MARKERS = re.compile(r"\{%-?\s*generation\s*-?%\}")
TOOLS_FIX = "use a model whose template takes tools, set data.chat_template to one that does (chatml), or take them out of the row"
CALLS_FIX = "use a model whose template takes tool calls, set data.chat_template to one that does (chatml), or write the calls into the content"
MARKED_FIX = "use a template that marks the answers with {% generation %}, or convert the row"

RENAMED_KEYS = ("reasoning_content", "thinking", "reasoning")
"""Keys of messages that transformers also gives a template under other names."""

_PROBE: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}]},
]

CharSpan = tuple[int, int]
Message = dict[str, Any]
Tools = list[dict[str, Any]] | None


class ChatTemplate:
    """Renders messages. The text is what transformers' apply_chat_template gives."""

    def __init__(self, tokenizer: Any) -> None:
        """Raises DataError when the tokenizer has no chat template."""
        if not tokenizer.chat_template:
            raise DataError(
                "the tokenizer has no chat template, so messages can't be rendered",
                where="model.model_name_or_path",
                fix="use an instruction-tuned model, set data.chat_template, or use data format prompt_completion",
            )
        from transformers.utils import chat_template_utils

        self._render: Any = chat_template_utils.render_jinja_template
        # What `render` compiles, without its conversion of every value: rows are plain JSON already.
        self._compile: Any = getattr(chat_template_utils, "_compile_jinja_template", None)
        self._special = dict(tokenizer.special_tokens_map)
        try:
            self._sources = {tools: str(tokenizer.get_chat_template(tools=[{}] if tools else None)) for tools in (False, True)}
        except ValueError as error:
            raise DataError(str(error), where="model.model_name_or_path", fix="set data.chat_template") from error
        self._text_arguments = self._takes_text_alone()
        added = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
        self.added = re.compile("|".join(re.escape(token) for token in added) or r"(?!)")
        """Matches every token that was added to the vocabulary: control tokens are among them."""

    def _takes_text_alone(self) -> bool:
        """Whether the template puts together calls whose arguments are JSON text, and fails on objects."""
        if "tool_calls" not in self.source(None):
            return False
        for is_text in (False, True):
            self._text_arguments = is_text
            with contextlib.suppress(DataError):
                self.text(_PROBE, None)
                return is_text
        return False

    def source(self, tools: Tools) -> str:
        """The template's own text; a tokenizer may have another one for rows with tools."""
        return self._sources[bool(tools)]

    def has_markers(self, tools: Tools) -> bool:
        """Whether the template marks what the assistant writes with {% generation %}."""
        return MARKERS.search(self.source(tools)) is not None

    def syntax_error(self) -> str:
        """What is wrong with the template's own text; empty when it can be read."""
        from jinja2 import TemplateSyntaxError

        for source in self._sources.values():
            try:
                self._render([], chat_template=source)
            except TemplateSyntaxError as error:
                return f"line {error.lineno}: {error.message}"
            except Exception as error:  # noqa: BLE001  constants are worked out already here, so that it may be anything, as in text
                return f"{type(error).__name__}: {error}"
        return ""

    def text(self, messages: Sequence[Message], tools: Tools, *, prompt: bool = False) -> str:
        """The messages as text; with `prompt` up to where an answer begins. Raises DataError when the template refuses them."""
        try:
            if self._compile is not None and not any(key in message for message in messages for key in RENAMED_KEYS):
                given = {"messages": self._given(messages), "tools": tools, "documents": None, "add_generation_prompt": prompt}
                return str(self._compile(self.source(tools)).render(**given, **self._special))
            texts, _ = self._render([self._given(messages)], tools=tools, chat_template=self.source(tools), add_generation_prompt=prompt, **self._special)
        except Exception as error:  # a template is somebody's program: whatever it raises is about this row
            raise refused(messages, error) from error
        return str(texts[0])

    def marked(self, messages: Sequence[Message], tools: Tools) -> tuple[str, list[CharSpan]]:
        """The messages as text, and what the template's markers enclose, in order. Raises DataError as `text`."""
        try:
            asked: dict[str, Any] = {"tools": tools, "chat_template": self.source(tools), "return_assistant_tokens_mask": True}
            texts, marked = self._render([self._given(messages)], **asked, **self._special)
        except Exception as error:  # as in text
            raise refused(messages, error) from error
        return str(texts[0]), [(start, end) for start, end in marked[0]]

    def _given(self, messages: Sequence[Message]) -> list[Message]:
        """The messages without keys that hold nothing, as transformers gives them to a template; nulls inside tool calls stay."""
        bare = [{key: value for key, value in message.items() if value is not None} for message in messages]
        return [with_text_arguments(message) for message in bare] if self._text_arguments else bare


def refused(messages: Sequence[Message], error: Exception) -> DataError:
    """What a template that raised says about a row."""
    return DataError(
        f"the chat template refuses the row: {type(error).__name__}: {error} (roles: {roles_of(messages)})",
        fix="change the row's roles or contents to what this model's template takes, or take the row out",
    )


def roles_of(messages: Sequence[Message]) -> str:
    """The role sequence, for messages to the user."""
    return " ".join(str(message["role"]) for message in messages)
