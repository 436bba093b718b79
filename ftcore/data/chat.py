"""Chat templates: a conversation -> the text a model sees, and which characters of it are the assistant's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ftcore.data.fields import Conversation
from ftcore.spec.errors import DataError

MARKERS = re.compile(r"\{%-?\s*generation\s*-?%\}")
MARKED_FIX = "use a template that marks the answers with {% generation %}, or convert the row"

CharSpan = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """Text to tokenise, and its supervised characters."""

    text: str
    spans: tuple[CharSpan, ...]
    """Half-open, in order, not overlapping: answers with their turn ends."""
    weights: tuple[float, ...]
    """What each token of a span counts, over 0; one a span."""
    cut: bool = False
    """Whether the text must be tokenised apart at each span's start (prompt + completion)."""
    adds_bos: bool = False
    """Whether the tokenizer's own beginning-of-text token goes first; a chat template writes its own."""


class ChatRenderer:
    """Renders conversations with a tokenizer's chat template."""

    def __init__(self, tokenizer: Any) -> None:
        """Raises DataError when the tokenizer has no chat template."""
        if not tokenizer.chat_template:
            raise DataError(
                "the tokenizer has no chat template, so messages can't be rendered",
                where="model.model_name_or_path",
                fix="use an instruction-tuned model, add chat_template.jinja to the model folder, or use data format prompt_completion",
            )
        self._tokenizer = tokenizer
        added = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
        self._added = re.compile("|".join(re.escape(token) for token in added) or r"(?!)")

    def render(self, conversation: Conversation) -> Rendered:
        """The conversation's text and the characters that are supervised.

        With {% generation %} markers those are what the template marks; else each assistant turn is what its rendering adds
        to the rendering of the messages before it (with the generation prompt), up to the turn's end token. Answers of weight 0 are left out.
        Raises DataError (without the row's place) when the template refuses the row, ignores its tools, or rewrites earlier turns.
        """
        self._check_tools_are_used(conversation)
        if MARKERS.search(self._template(conversation.tools)):
            return self._render_marked(conversation)
        text = self._text(conversation, conversation.messages)
        counting = {index: weight for index in _answers(conversation) if (weight := conversation.weights.get(index, 1.0))}
        spans = tuple(self._turn(conversation, index, text) for index in counting)
        return Rendered(text=text, spans=spans, weights=tuple(counting.values()))

    def _template(self, tools: Sequence[dict[str, Any]] | None) -> str:
        return str(self._tokenizer.get_chat_template(tools=tools))

    def _text(self, conversation: Conversation, messages: list[dict[str, Any]], *, prompt: bool = False, tools: bool = True) -> str:
        given = conversation.tools if tools else None
        try:
            text = self._tokenizer.apply_chat_template(messages, tools=given, add_generation_prompt=prompt, tokenize=False)
        except Exception as error:  # a template is somebody's program: whatever it raises is about this row
            raise self._refused(conversation, error) from error
        return str(text)

    def _refused(self, conversation: Conversation, error: Exception) -> DataError:
        return DataError(
            f"the chat template refuses the row: {type(error).__name__}: {error} (roles: {conversation.roles})",
            fix="change the row's roles or contents to what this model's template takes, or take the row out",
        )

    def _turn(self, conversation: Conversation, index: int, text: str) -> CharSpan:
        """Where the answer `index` and its turn end stand in `text`."""
        if index == 0:
            raise DataError(
                f"the first message is the assistant's, nothing prompts it (roles: {conversation.roles})", fix="begin the row with a system or user message"
            )
        before = self._text(conversation, conversation.messages[:index], prompt=True)
        last = index == len(conversation.messages) - 1
        until = text if last else self._text(conversation, conversation.messages[: index + 1])
        if not until.startswith(before):
            raise DataError(
                f"the chat template's generation prompt is not how it begins message {index + 1} (roles: {conversation.roles})",
                fix=MARKED_FIX,
            )
        end = self._turn_end(until, len(before), text)
        if end is None or until[:end] != text[:end]:
            raise DataError(
                f"the chat template renders message {index + 1} or those before it differently once later ones follow (roles: {conversation.roles})",
                fix=MARKED_FIX + " into one row an answer",
            )
        self._check_prompted(conversation.messages[index], until[len(before) : end])
        return len(before), end

    def _turn_end(self, until: str, start: int, text: str) -> int | None:
        """The end of the last added token that closes the turn and stands in `text` too; else of the last visible character."""
        closing = len(until)
        ends: list[int] = []
        for match in reversed(list(self._added.finditer(until, start))):
            if until[match.end() : closing].strip():
                break
            ends.append(match.end())
            closing = match.start()
        if ends:
            return next((end for end in ends if until[:end] == text[:end]), None)
        return start + len(until[start:].rstrip())

    def _check_prompted(self, message: dict[str, Any], turn: str) -> None:
        """The turn must not hold its own header, and must hold an end."""
        content = str(message.get("content") or "").strip()
        if content not in turn:  # the template changes contents (drops old reasoning, say): nothing to compare with
            return
        lead, _, tail = turn.partition(content) if content else ("", "", turn)
        if lead.strip() and "add_generation_prompt" not in self._template(None):
            raise DataError(
                f"the chat template has no generation prompt, so {lead.strip()!r} would be learned as part of the answer",
                fix="use a template that honours add_generation_prompt, or one with {% generation %} markers",
            )
        if not tail.strip() and not message.get("tool_calls"):
            raise DataError(
                "the chat template writes nothing after an answer, so the model would never learn to stop",
                fix="use a template that ends an assistant turn with an end token",
            )

    def _render_marked(self, conversation: Conversation) -> Rendered:
        text, marked = self._marked(conversation, conversation.messages)
        first = conversation.supervised_from
        start = len(self._text(conversation, conversation.messages[:first], prompt=True)) if first else 0
        weights = self._marked_weights(conversation, len(marked)) if conversation.weights else [1.0] * len(marked)
        supervised = [(span, weight) for span, weight in zip(marked, weights, strict=True) if span[1] > span[0] >= start]
        spans = tuple(span for span, _ in supervised)
        if not spans and _answers(conversation):
            raise DataError(
                f"the template's {{% generation %}} markers mark nothing (roles: {conversation.roles})",
                fix="put the markers around the assistant's content and end token",
            )
        if spans and spans[0] == (0, len(text)):
            raise DataError(
                "the template's {% generation %} markers mark the whole text, prompt included",
                fix="put the markers around the assistant's content and end token",
            )
        counting = [(span, weight) for span, weight in supervised if weight]
        return Rendered(text=text, spans=tuple(span for span, _ in counting), weights=tuple(weight for _, weight in counting))

    def _marked(self, conversation: Conversation, messages: list[dict[str, Any]]) -> tuple[str, list[CharSpan]]:
        """The text of `messages` and what the template's markers enclose, in order."""
        from transformers.utils import chat_template_utils

        render: Any = chat_template_utils.render_jinja_template
        try:
            texts, marked = render(
                conversations=[[{key: value for key, value in message.items() if value is not None} for message in messages]],
                tools=conversation.tools,
                chat_template=self._template(conversation.tools),
                return_assistant_tokens_mask=True,
                **self._tokenizer.special_tokens_map,
            )
        except Exception as error:  # as in _text
            raise self._refused(conversation, error) from error
        return str(texts[0]), [(start, end) for start, end in marked[0]]

    def _marked_weights(self, conversation: Conversation, marked: int) -> list[float]:
        """The weight of each marked range: those that an answer adds to the messages before it are its own.

        Raises DataError when the ranges can't be told apart so: an answer adds none, another message adds some, or later ones take some away.
        """
        weights: list[float] = []
        told_apart = True
        for index, message in enumerate(conversation.messages):
            if message["role"] != "assistant":
                continue
            before = len(self._marked(conversation, conversation.messages[:index])[1]) if index else 0
            added = len(self._marked(conversation, conversation.messages[: index + 1])[1]) - before
            told_apart = before == len(weights) and added > 0
            if not told_apart:
                break
            weights += [conversation.weights.get(index, 1.0)] * added
        if not told_apart or len(weights) != marked:
            raise DataError(
                f"the row has weights, and the template's {{% generation %}} markers don't tell its answers apart (roles: {conversation.roles})",
                fix="use a template that marks every answer, whatever follows, or take weight and train out of the row",
            )
        return weights

    def _check_tools_are_used(self, conversation: Conversation) -> None:
        template = self._template(conversation.tools)
        if conversation.tools and ("tools" not in template or self._ignores_tools(conversation)):
            raise DataError("the row has tools, and the chat template ignores them", fix="use a model whose template takes tools, or take them out of the row")
        if "tool_calls" not in template and any(message.get("tool_calls") for message in conversation.messages):
            raise DataError(
                "the row has tool_calls, and the chat template ignores them",
                fix="use a model whose template takes tool calls, or write the calls into the content",
            )

    def _ignores_tools(self, conversation: Conversation) -> bool:
        return self._text(conversation, conversation.messages) == self._text(conversation, conversation.messages, tools=False)


def _answers(conversation: Conversation) -> list[int]:
    """Indices of the assistant's messages that are supervised."""
    return [index for index, message in enumerate(conversation.messages) if message["role"] == "assistant" and index >= conversation.supervised_from]
