"""Stand-in texts in the place of a row's own: where the template puts them says where it puts any text of such a row.

Rows of one shape (roles, keys, which texts are empty) share the stand-ins' rendering, so it is made and analysed once for all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftcore.data.templates.rendering import CharSpan, Message

TAGS = re.compile(r"\s*</?(?:think|tool_call|tool_response)>\s*")
"""Templates cut contents at these, so they stay as they are between stand-ins."""
CONTENT, REASONING, NAME, ARGUMENT, ID = "content", "reasoning", "name", "argument", "id"
TOOL_MARK = "zqtool"
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")

# The quote and the accent show whether the template wrote a text as it is or inside JSON, and which JSON.
_SLOT = re.compile(r'zq(\d+)q(\d+)("é|\\"é|\\"\\u00e9)z|zi(\d+)i*z')
RAW = '"é'
_ENCODINGS: dict[str, Callable[[str], str]] = {
    RAW: lambda text: text,
    '\\"é': lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    '\\"\\u00e9': lambda text: json.dumps(text)[1:-1],
}

SlotKey = tuple[int, int]
"""(message, number of the text in it); (-1, n): the n-th id of the row's tool calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A stand-in found in a rendered text."""

    key: SlotKey
    kind: str
    """content, reasoning, name, argument or id."""
    encode: Callable[[str], str]
    """What the template does to a text there."""


@dataclass(slots=True)
class Shape:
    """A row's shape, and the texts that stand-ins replace in it."""

    key: list[str] = field(default_factory=list)
    """Equal for rows that differ in those texts alone."""
    texts: dict[SlotKey, str] = field(default_factory=dict)
    kinds: dict[SlotKey, str] = field(default_factory=dict)
    """content, reasoning, name, argument or id."""
    messages: list[Message] = field(default_factory=list)
    """With stand-ins; left empty by `quick_shape`."""

    def needed(self, message: int) -> list[SlotKey]:
        """The texts that must be learned for a message to be: the last of its content (what stands before may be reasoning), names of calls."""
        own = [(key, kind) for key, kind in self.kinds.items() if key[0] == message]
        return [key for key, kind in own if kind == CONTENT][-1:] + [key for key, kind in own if kind == NAME]

    def tags_behind(self, message: int) -> str:
        """The tags that a message's content ends with, behind its last stand-in: they are its text, and no end of its turn."""
        content = self.messages[message].get("content")
        if not isinstance(content, str) or self.messages[message].get("tool_calls"):
            return ""
        return content[max((slot.end() for slot in _SLOT.finditer(content)), default=0) :].strip()


def quick_shape(messages: Sequence[Message]) -> Shape | None:
    """The shape of a row whose messages are plain roles and contents, without building its stand-ins; None for another one."""
    shape = Shape()
    for index, message in enumerate(messages):
        content = message.get("content")
        if len(message) != 2 or type(content) is not str or "</t" in content or "<t" in content:
            return None
        if content:
            shape.texts[index, 0] = content
        shape.key.append(("+" if content else "-") + message["role"])
    return shape


def full_shape(messages: Sequence[Message], *, margins: bool) -> Shape:
    """The shape with its stand-in messages. With `margins` white space around each text stays as it is."""
    shape = Shape()
    ids: dict[str, int] = {}
    for index, message in enumerate(messages):
        made = _Maker(shape=shape, index=index, margins=margins, ids=ids).message(message)
        shape.messages.append(made)
        plain = quick_shape([message]) if not margins else None
        shape.key.append(plain.key[0] if plain is not None else json.dumps(made, ensure_ascii=False))
    return shape


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInText:
    """A rendering of stand-ins: the template's own texts (glue), and between each two of them a slot."""

    text: str
    glue: tuple[str, ...]
    slots: tuple[Slot, ...]
    spans: tuple[CharSpan, ...]
    """Where each slot stands."""

    def of(self, message: int, *kinds: str) -> list[CharSpan]:
        """Where the texts of a message stand, in order; of `kinds` alone where given."""
        return [span for slot, span in zip(self.slots, self.spans, strict=True) if slot.key[0] == message and (not kinds or slot.kind in kinds)]

    def of_keys(self, message: int) -> list[tuple[SlotKey, CharSpan]]:
        """The texts of a message that stand here, and where."""
        return [(slot.key, span) for slot, span in zip(self.slots, self.spans, strict=True) if slot.key[0] == message]

    def last_before(self, character: int) -> int:
        """The number of the last slot that ends at or before a character; -1 when there is none."""
        return sum(end <= character for _, end in self.spans) - 1

    def end_of(self, slot: int) -> int:
        """Where a slot ends; 0 for -1."""
        return self.spans[slot][1] if slot >= 0 else 0


def behind(tags: str, text: str, at: int) -> int:
    """`at`, or the character behind `tags` where these stand there in `text`."""
    start = at + len(text[at:]) - len(text[at:].lstrip())
    return start + len(tags) if tags and text.startswith(tags, start) else at


def read_stand_ins(text: str, kinds: dict[SlotKey, str]) -> StandInText:
    """Finds the stand-ins in a rendering."""
    glue, slots, spans, at = [], [], [], 0
    for match in _SLOT.finditer(text):
        key = (-1, int(match[4])) if match[4] else (int(match[1]), int(match[2]))
        if key in kinds:
            glue.append(text[at : match.start()])
            slots.append(Slot(key=key, kind=kinds[key], encode=_ENCODINGS[match[3] or RAW]))
            spans.append(match.span())
            at = match.end()
    return StandInText(text=text, glue=(*glue, text[at:]), slots=tuple(slots), spans=tuple(spans))


def stand_in_tools() -> list[dict[str, Any]]:
    """A tool for rows that have tools: theirs differ, and stand before the first answer."""
    described = {"type": "string", "description": TOOL_MARK}
    parameters = {"type": "object", "properties": {TOOL_MARK: described}, "required": [TOOL_MARK]}
    return [{"type": "function", "function": {"name": TOOL_MARK, "description": TOOL_MARK, "parameters": parameters}}]


@dataclass(slots=True, kw_only=True)
class _Maker:
    """Makes one message's stand-in."""

    shape: Shape
    index: int
    margins: bool
    ids: dict[str, int]
    count: int = 0

    def message(self, message: Message) -> Message:
        made: Message = {}
        for key, value in message.items():
            if key == "content" and isinstance(value, str):
                made[key] = self._chunks(value, CONTENT)
            elif key in REASONING_KEYS and isinstance(value, str):
                made[key] = self._chunks(value, REASONING)
            elif key == "tool_calls" and isinstance(value, list):
                made[key] = [self._call(call) for call in value]
            elif key == "tool_call_id":
                made[key] = self._id(value)
            else:
                made[key] = value
        return made

    def _chunks(self, text: str, kind: str) -> str:
        parts, at = [], 0
        for tag in TAGS.finditer(text):
            parts += [self._text(text[at : tag.start()], kind), tag[0]]
            at = tag.end()
        return "".join([*parts, self._text(text[at:], kind)])

    def _text(self, text: str, kind: str) -> str:
        core = text.strip() if self.margins else text
        if not core:
            return text
        before, _, after = text.partition(core)
        key = (self.index, self.count)
        self.count += 1
        self.shape.texts[key], self.shape.kinds[key] = core, kind
        return f"{before}zq{key[0]}q{key[1]}{RAW}z{after}"

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        made = {key: self._id(value) if key == "id" else value for key, value in call.items()}
        if isinstance(call.get("function"), dict):
            made["function"] = self._function(call["function"])
        return made

    def _function(self, function: dict[str, Any]) -> dict[str, Any]:
        made = dict(function)
        if isinstance(function.get("name"), str):
            made["name"] = self._text(function["name"], NAME)
        if "arguments" in function:
            made["arguments"] = self._leaves(function["arguments"])
        return made

    def _leaves(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value, ARGUMENT)
        if isinstance(value, dict):
            return {key: self._leaves(each) for key, each in value.items()}
        return [self._leaves(each) for each in value] if isinstance(value, list) else value

    def _id(self, value: Any) -> Any:
        """An id of the same length, which some templates check; one too short for a stand-in stays."""
        if not isinstance(value, str) or not value.isascii() or len(value) < len(f"zi{len(self.ids)}z"):
            return value
        number = self.ids.setdefault(value, len(self.ids))
        self.shape.texts[-1, number], self.shape.kinds[-1, number] = value, ID
        made = f"zi{number}".ljust(len(value) - 1, "i") + "z"
        return made if len(made) == len(value) else value
