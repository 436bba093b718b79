"""Names of roles in files -> the roles of chat templates, and which orders of roles can't be learned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftcore.data.formats.record_kinds import Messages, role_sequence
from ftcore.data.formats.values import kind
from ftcore.spec.errors import DataError
from ftcore.spec.yaml_text import quoted

KNOWN = {
    "system": ("system", "developer"),
    "user": ("user", "human", "prompter"),
    "assistant": ("assistant", "gpt", "chatgpt", "bing", "bard", "bot", "model", "ai"),
    "tool": ("tool", "observation", "function", "function_response", "tool_response", "ipython"),
    "function_call": ("function_call", "tool_call"),
}
"""Role -> the names for it, in any case. A function_call is an assistant's turn whose text is the call."""
_KNOWN_NAMES = {name: role for role, names in KNOWN.items() for name in names}


class RoleMap:
    """The known names, and those that the set's `roles` adds or changes."""

    def __init__(self, given: Mapping[str, str], where: str) -> None:
        self._roles = {**_KNOWN_NAMES, **{name.lower(): role for name, role in given.items()}, **given}
        self._where = where

    def role(self, speaker: Any, name: str) -> str:
        """system, user, assistant, tool or function_call. Raises DataError when `speaker`, that of the message `name`, is none of the names."""
        if not isinstance(speaker, str):
            raise DataError(f"{name} has a role that is {kind(speaker)}", fix="a role is a string")
        role = self._roles.get(speaker) or self._roles.get(speaker.lower().strip())
        if role is None:
            known = ", ".join(_KNOWN_NAMES)
            fix = f"the roles known are {known}; say what another means: {self._where}.roles: {{{quoted(speaker[:60])}: user}}"
            raise DataError(f"{name} has role {speaker[:60]!r}", fix=fix)
        return role


def check_order(messages: Messages) -> None:
    """Raises DataError when a tool's message answers nothing. Every other order goes to the template as it is."""
    called: set[Any] | None = None
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "assistant":
            called = {call.get("id") for call in message.get("tool_calls", ())} - {None}
        elif role != "tool":
            called = None
        elif called is None:
            raise DataError(
                f"message {index + 1} is a tool's, and no assistant's message before it calls one (roles: {role_sequence(messages)})",
                fix="put the assistant's call before it, or take the message out",
            )
        elif called and message.get("tool_call_id") not in (*called, None):
            given = ", ".join(sorted(map(repr, called)))
            raise DataError(
                f"message {index + 1} answers the call {message['tool_call_id']!r}, and the calls before it are {given} (roles: {role_sequence(messages)})",
                fix="give tool_call_id the id of a call before it",
            )
