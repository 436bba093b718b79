"""The answers of one row by rendering its own messages, for templates that treat contents in ways no stand-in shows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ftcore.data.formats.record_kinds import Conversation
from ftcore.data.templates.analysis import NO_END
from ftcore.data.templates.rendering import CALLS_FIX, MARKED_FIX, CharSpan, ChatTemplate
from ftcore.data.templates.turn_ends import turn_end
from ftcore.spec.errors import DataError

Found = dict[int, list[CharSpan]]


def answers_of_row(template: ChatTemplate, conversation: Conversation, text: str, learned: Collection[int]) -> Found:
    """Message of the assistant -> its ranges in `text`, the row's rendering, for each of `learned`.

    Raises DataError when one of them is not what the template adds to the messages before it, or holds nothing of the answer's text.
    """
    row = _Row(template, conversation, text)
    found = row.marked(learned) if template.has_markers(conversation.tools) else {index: [row.added_by(index)] for index in learned}
    for index, parts in found.items():
        row.check(index, "".join(text[start:end] for start, end in parts))
    return found


@dataclass(frozen=True, slots=True)
class _Row:
    template: ChatTemplate
    conversation: Conversation
    text: str

    def _render(self, count: int, *, prompt: bool = False) -> str:
        return self.template.text(self.conversation.messages[:count], self.conversation.tools, prompt=prompt)

    def added_by(self, index: int) -> CharSpan:
        """What an answer adds to the rendering of the messages before it with the generation prompt, up to its turn end."""
        roles, messages = self.conversation.roles, self.conversation.messages
        if index == 0:
            raise DataError(f"the first message is the assistant's, nothing prompts it (roles: {roles})", fix="begin the row with a system or user message")
        before = self._render(index, prompt=True)
        until = self.text if index == len(messages) - 1 else self._render(index + 1)
        if not until.startswith(before):
            raise DataError(f"the chat template's generation prompt is not how it begins message {index + 1} (roles: {roles})", fix=MARKED_FIX)
        start = len(before)
        length = turn_end(until[start:], self.text[start:], self.template.added) if self.text.startswith(before) else None
        if length is None:
            raise DataError(
                f"the chat template renders message {index + 1} or those before it differently once later ones follow (roles: {roles})",
                fix=MARKED_FIX + " into one row an answer",
            )
        return start, start + length

    def marked(self, learned: Collection[int]) -> Found:
        """What the markers enclose, told apart by what each answer adds to the messages before it."""
        messages, tools = self.conversation.messages, self.conversation.tools
        _, marked = self.template.marked(messages, tools)
        found: Found = {}
        taken = 0
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = len(self.template.marked(messages[:index], tools)[1]) if index else 0
            until = len(self.template.marked(messages[: index + 1], tools)[1])
            if before != taken or until <= before:
                break
            found[index] = marked[before:until]
            taken = until
        if taken != len(marked) or any(index not in found for index in learned):
            raise DataError(
                f"the template's {{% generation %}} markers don't tell the answers apart (roles: {self.conversation.roles})",
                fix="use a template that marks every answer, whatever follows",
            )
        return {index: found[index] for index in learned}

    def check(self, index: int, turn: str) -> None:
        """The turn must hold the answer, or the part of it that the template keeps, then an end, and no header of its own."""
        message = self.conversation.messages[index]
        content = str(message.get("content") or "").strip()
        body = self.template.added.sub("", turn).strip() if content and content not in turn else content
        if content and (not body or body not in content):
            raise DataError(
                f"the chat template writes message {index + 1} as {turn[:80]!r}, which isn't its text (roles: {self.conversation.roles})",
                fix="use a template that writes contents as they are, or convert the row",
            )
        lead, _, tail = turn.partition(body) if body else ("", "", turn)
        source = self.template.source(self.conversation.tools)
        if lead.strip() and "add_generation_prompt" not in source and not self.template.has_markers(self.conversation.tools):
            raise DataError(
                f"the chat template has no generation prompt, so {lead.strip()!r} would be learned as part of the answer",
                fix="use a template that honours add_generation_prompt, or one with {% generation %} markers",
            )
        if not tail.strip():
            raise NO_END
        if any(self._name(call) not in turn for call in message.get("tool_calls") or ()):
            raise DataError(
                "the row has tool_calls, and the chat template ignores them",
                fix=CALLS_FIX,
            )

    def _name(self, call: dict[str, object]) -> str:
        function = call.get("function")
        return str((function if isinstance(function, dict) else call).get("name", ""))
