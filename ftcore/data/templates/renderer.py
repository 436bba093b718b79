"""A conversation -> the text that a model sees, and which characters of it are learned."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from ftcore.data.formats.record_kinds import Conversation
from ftcore.data.templates.analysis import Prefixes, analyse
from ftcore.data.templates.control import ControlTokens
from ftcore.data.templates.layout import Layout, Placed, place
from ftcore.data.templates.learned import Weighted, everything, learned_answers
from ftcore.data.templates.markers import MARKER_FIX
from ftcore.data.templates.prefixes import answers_of_row
from ftcore.data.templates.rendered import Rendered
from ftcore.data.templates.rendering import CALLS_FIX, TOOLS_FIX, CharSpan, ChatTemplate, Message, Tools
from ftcore.data.templates.standins import TOOL_MARK, Shape, full_shape, quick_shape, stand_in_tools
from ftcore.spec.errors import DataError

MOST_LAYOUTS = 4096
"""Shapes of rows that are remembered."""


class ChatRenderer:
    """Renders conversations with a tokenizer's chat template."""

    def __init__(self, tokenizer: Any, loss_on: str = "assistant") -> None:
        """Raises DataError when the tokenizer has no chat template."""
        self._template = ChatTemplate(tokenizer)
        self._control = ControlTokens(tokenizer)
        self._loss_on = loss_on
        self._prefixes: dict[bool, Prefixes] = {False: {}, True: {}}
        self._layouts: dict[tuple[str, ...], Layout | None] = {}
        self._takes_tools: dict[tuple[str, ...], bool] = {}

    def render(self, conversation: Conversation) -> Rendered:
        """The conversation's text and the characters that are supervised.

        The row is rendered once. Its text must be what the rendering of stand-ins of its shape says, with the row's own texts in their place:
        then the answers stand where they stand there. Where a template treats contents in another way, the row's own messages are rendered one
        by one. Raises DataError (without the row's place) when the template refuses the row, ignores its tools, or shows its answers in no way
        that can be proved.
        """
        learned = learned_answers(conversation, self._loss_on)
        tools = conversation.tools
        self._check_kinds(conversation)
        if learned.get(0) and self._loss_on != "all":
            what = f"the first message is the assistant's, nothing prompts it (roles: {conversation.roles})"
            raise DataError(what, fix='begin the row with a system or user message, or write "train": false into this one')
        text = self._template.text(conversation.messages, tools)
        shape = quick_shape(conversation.messages) or full_shape(conversation.messages, margins=False)
        self._check_tools(conversation, shape, text)
        spelt = self._spelt(shape, tools)
        counting = {index: weight for index, weight in learned.items() if weight}
        if self._loss_on == "all":
            counting = {index: weight for index, weight in learned.items() if weight != 1}
        needs_place = counting or spelt or self._loss_on == "all"
        placed = self._place(conversation.messages, tools, shape, text, counting, whole=bool(spelt)) if needs_place else None
        if spelt and placed is None:
            raise self._control.refused(spelt)
        if needs_place:
            _check_all_written(conversation, text, placed)
        weighted = self._weighted(conversation, text, placed, counting)
        if self._loss_on == "all":
            weighted = everything(len(text), weighted)
        return Rendered(
            text=text,
            spans=tuple(span for span, _ in weighted),
            weights=tuple(weight for _, weight in weighted),
            turns=tuple(placed.at(spot) for spot in placed.layout.turns) if placed else (),
            plain=self._plain(text, placed) if spelt and placed else (),
        )

    def prompt(self, messages: list[Message], tools: Tools) -> Rendered:
        """The text of messages up to where an answer begins, as rows that are trained on show it."""
        text = self._template.text(messages, tools, prompt=True)
        shape = full_shape(messages, margins=False)
        spelt = self._spelt(shape, tools)
        if not spelt:
            return Rendered(text=text, spans=(), weights=())
        bare = self._template.text(messages, tools)
        placed = self._place(messages, tools, shape, bare, (), whole=True)
        known = placed.slot_spans[-1][1] if placed else 0
        if placed is None or text[:known] != bare[:known]:
            raise self._control.refused(spelt)
        return Rendered(text=text, spans=(), weights=(), plain=self._plain(text, placed))

    def _plain(self, text: str, placed: Placed) -> tuple[CharSpan, ...]:
        return tuple(part for start, end in placed.slot_spans for part in self._control.spelt_in(text, start, end))

    def _spelt(self, shape: Shape, tools: Tools) -> str:
        """A control token that a text of the row spells; empty when none does. Raises DataError where no text can: tools, keys, names."""
        fixed = self._control.first_in("".join(shape.key) + (json.dumps(tools, ensure_ascii=False) if tools else ""))
        if fixed:
            raise self._control.refused(fixed)
        return next((found for text in shape.texts.values() if (found := self._control.first_in(text))), "")

    def _weighted(self, conversation: Conversation, text: str, placed: Placed | None, counting: Mapping[int, float]) -> Weighted:
        """The answers' characters, each with its weight. Raises DataError when they can't be told."""
        if not counting:
            return []
        parts = answers_of_row(self._template, conversation, text, counting) if placed is None else {index: _spans(placed, index) for index in counting}
        unmarked = [index for index in counting if not parts[index]]
        if len(unmarked) == len(counting) or any(index in conversation.weights for index in unmarked):
            what = "leave out every answer" if len(unmarked) == len(counting) else f"don't tell its answers apart: they leave out message {unmarked[0] + 1}"
            raise DataError(f"the template's {{% generation %}} markers {what} (roles: {conversation.roles})", fix=MARKER_FIX)
        return [(span, weight) for index, weight in counting.items() for span in parts[index]]

    def _place(self, messages: list[Message], tools: Tools, shape: Shape, text: str, needed: Collection[int], *, whole: bool) -> Placed | None:
        """The row's text laid over the layout of its shape; `whole`: every character must be compared, tools too."""
        roles = [message["role"] for message in messages]
        if not (whole and tools):
            layout = self._layout(messages, shape, tools, any_tools=bool(tools))
            placed = place(layout, shape.texts, roles, text) if layout else None
            if placed and all(_is_compared(placed.layout, index) for index in needed):
                return placed
        exact = full_shape(messages, margins=True)
        layout = self._layout(messages, exact, tools, any_tools=False)
        return place(layout, exact.texts, roles, text) if layout else None

    def _layout(self, messages: list[Message], shape: Shape, tools: Tools, *, any_tools: bool) -> Layout | None:
        """The layout of a shape, made once; None when the template refuses its stand-ins. `any_tools`: for rows with whatever tools."""
        key = ("any" if any_tools else json.dumps(tools), *shape.key)
        if key not in self._layouts:
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
                self._prefixes = {False: {}, True: {}}
            built = shape if shape.messages else full_shape(messages, margins=False)
            prefixes = self._prefixes[any_tools] if any_tools or not tools else {}
            try:
                self._layouts[key] = analyse(self._template, built, stand_in_tools() if any_tools else tools, prefixes, tools_stand_in=any_tools)
            except DataError:
                self._layouts[key] = None
        return self._layouts[key]

    def _check_kinds(self, conversation: Conversation) -> None:
        source = self._template.source(conversation.tools)
        if conversation.tools and "tools" not in source:
            raise DataError("the row has tools, and the chat template ignores them", fix=TOOLS_FIX)
        if "tool_calls" not in source and any(message.get("tool_calls") for message in conversation.messages):
            raise DataError(
                "the row has tool_calls, and the chat template ignores them",
                fix=CALLS_FIX,
            )

    def _check_tools(self, conversation: Conversation, shape: Shape, text: str) -> None:
        """Every tool of the row must stand in its text."""
        tools = conversation.tools
        if not tools:
            return
        names = [str((tool.get("function") or tool).get("name", "")) for tool in tools]
        lost = next((name for name in names if name not in text and json.dumps(name)[1:-1] not in text), None)
        key = tuple(shape.key)
        if key not in self._takes_tools:
            self._takes_tools[key] = self._writes_tools(conversation, text)
        if lost is not None or not self._takes_tools[key]:
            what = f"leaves out {lost!r}" if self._takes_tools[key] else "ignores them"
            raise DataError(f"the row has tools, and the chat template {what}", fix=TOOLS_FIX)

    def _writes_tools(self, conversation: Conversation, text: str) -> bool:
        """Whether the template writes the tools of rows like this one."""
        try:
            return TOOL_MARK in self._template.text(conversation.messages, stand_in_tools())
        except DataError:  # it takes no tools like the stand-ins
            return text != self._template.text(conversation.messages, None)


def _spans(placed: Placed, index: int) -> list[CharSpan]:
    spots = placed.layout.answers[index]
    if isinstance(spots, DataError):
        raise DataError(spots.problems)
    return [(placed.at(start), placed.at(end)) for start, end in spots]


def _is_compared(layout: Layout, index: int) -> bool:
    spots = layout.answers[index]
    return isinstance(spots, DataError) or all(start > layout.compared for start, _ in spots)


def _check_all_written(conversation: Conversation, text: str, placed: Placed | None) -> None:
    """An answer is learned with all that came before it: raises DataError when the template leaves out what somebody said."""
    if placed is not None:
        left_out = placed.layout.left_out
    else:
        said = {index: str(message.get("content") or "").split() for index, message in enumerate(conversation.messages) if message["role"] != "assistant"}
        left_out = tuple(index for index, words in said.items() if words and not any(word in text for word in words))
    if left_out:
        role = conversation.messages[left_out[0]]["role"]
        raise DataError(
            f"the chat template leaves out message {left_out[0] + 1}, the {role}'s (roles: {conversation.roles})",
            fix=f"use a template that writes the {role}'s messages, or take them out of the row",
        )
