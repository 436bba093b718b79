"""Conversations for tests, written short, and what the supervised tokens of a row say."""

from __future__ import annotations

from typing import Any

from ftcore.data.formats.record_kinds import Conversation
from ftcore.data.reading.rows import Row
from ftcore.data.tokens import Tokens

ROW = Row(number=1, file="rows.jsonl", line=1, value={})
TOOL = {"type": "function", "function": {"name": "f", "description": "Does f.", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


def chat(*turns: str | dict[str, Any], tools: list[dict[str, Any]] | None = None, weights: dict[int, float] | None = None, start: int = 0) -> Conversation:
    """`chat("u hi", "a hello")`: roles by their first letter; other messages as they are. `start`: the first message of the completion."""
    messages = [dict(turn) if isinstance(turn, dict) else {"role": ROLES[turn[0]], "content": turn[2:]} for turn in turns]
    return Conversation(row=ROW, messages=messages, tools=tools, weights=weights or {}, supervised_from=start)


def call(name: str = "f", content: str | None = None, **arguments: Any) -> dict[str, Any]:
    """A message of the assistant that calls a tool."""
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def learned(backend: Any, tokens: Any) -> list[str]:
    """The supervised tokens of each span, decoded where they stand."""
    assert isinstance(tokens, Tokens), str(tokens)
    ids = tokens.ids.tolist()
    until = [backend.decode(ids[:end], skip_special_tokens=False) for _, end in tokens.spans]
    return [text[len(backend.decode(ids[:start], skip_special_tokens=False)) :] for text, (start, _) in zip(until, tokens.spans, strict=True)]
