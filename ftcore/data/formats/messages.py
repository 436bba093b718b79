"""A row's list of turns -> messages: roles by their map, contents as text, calls as objects. One way for messages and sharegpt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ftcore.data.formats.record_kinds import Messages
from ftcore.data.formats.roles import RoleMap
from ftcore.data.formats.tools import calls_of_text, tool_calls
from ftcore.data.formats.values import check_nested, checked_text, each_of, kind, unpacked
from ftcore.data.formats.weights import KEYS as WEIGHT_KEYS
from ftcore.data.formats.weights import taken_weights
from ftcore.spec.data_formats import SPEAKERS, WORDS
from ftcore.spec.errors import DataError

TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of a content's parts that are text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Where a turn says who speaks, and what: the first that it has."""

    speakers: tuple[str, ...]
    words: tuple[str, ...]
    other: str
    """What a turn without them most likely is, and what to write then."""


MESSAGE_KEYS = Keys(speakers=("role",), words=("content",), other="turns with from and value are the format sharegpt")
SHAREGPT_KEYS = Keys(speakers=SPEAKERS, words=WORDS, other=f"a turn says who speaks in {' or '.join(SPEAKERS)}, and what in {', '.join(WORDS)}")


def read_messages(value: Any, name: str, roles: RoleMap, keys: Keys, *, answers: bool = True) -> tuple[Messages, dict[int, float]]:
    """The messages of a row, and message index -> weight of the answers that don't count 1.

    `answers`: whether the assistant's messages in the list are learned at all. Turns of the role function_call that follow each other are one
    assistant's message with all their calls. Raises DataError naming every turn that is none.
    """
    turns = unpacked(value, name)
    if not isinstance(turns, list) or not turns:
        raise DataError(f"{name} is {kind(turns)}", fix="a list with at least one message")
    made = each_of(turns, name, lambda turn, place: _message(turn, place, roles, keys))
    called = [is_call for _, is_call in made]
    bare, weights = taken_weights([message for message, _ in made], name, answers=answers)
    return (bare, weights) if not any(called) else _joined(bare, weights, called, name)


def _message(turn: Any, name: str, roles: RoleMap, keys: Keys) -> tuple[dict[str, Any], bool]:
    """The message that a turn is, and whether it is a function_call."""
    if not isinstance(turn, dict):
        raise DataError(f"{name} is {kind(turn)}", fix="a message is an object that says who speaks, and what")
    speaker = next((key for key in keys.speakers if turn.get(key) is not None), None)
    words = next((key for key in keys.words if turn.get(key) is not None), None)
    if speaker is None:
        raise DataError(f"{name} has no {' or '.join(keys.speakers)}, only {', '.join(turn) or 'nothing'}", fix=keys.other)
    role = roles.role(turn[speaker], name)
    if words is not None and len(turn) == 2 and role != "function_call":
        return {"role": role, "content": _content(turn[words], f"{name}.{words}")}, False
    rest = {key: value for key, value in turn.items() if key not in (speaker, words, "content", "tool_calls", "function_call") and value is not None}
    shown = {key: value for key, value in rest.items() if key not in WEIGHT_KEYS}
    if shown:
        check_nested(shown, name)
    said = None if words is None else turn[words]
    if role == "function_call":
        return {"role": "assistant", "content": None, "tool_calls": calls_of_text(said, f"{name}.{words or keys.words[0]}"), **rest}, True
    calls = _calls(turn, name, role)
    if said is None and not calls:
        raise DataError(f"{name} has neither {keys.words[0]} nor tool_calls", fix=f'write "{keys.words[0]}": "" for an empty answer')
    message = {"role": role, "content": None if said is None else _content(said, f"{name}.{words}"), **rest}
    return ({**message, "tool_calls": calls} if calls else message), False


def _calls(turn: dict[str, Any], name: str, role: str) -> list[dict[str, Any]]:
    """The calls under tool_calls, or under function_call as they were written before that."""
    calls = [call for key in ("tool_calls", "function_call") if turn.get(key) is not None for call in tool_calls(turn[key], f"{name}.{key}")]
    if calls and role != "assistant":
        raise DataError(f"{name} is the {role}'s, and has tool_calls", fix="only the assistant calls tools")
    return calls


def _content(value: Any, name: str) -> str:
    """A text, or the texts of a list of parts, one behind the other with nothing between."""
    if not isinstance(value, list):
        return checked_text(value, name)
    return "".join(each_of(value, name, _part))


def _part(part: Any, name: str) -> str:
    if not isinstance(part, dict):
        return checked_text(part, name)
    form = part.get("type", "text")
    if form not in TEXT_PARTS:
        raise DataError(f"{name} is of type {form!r}"[:200], fix="only text is trained on: take the part out, or the row")
    if "text" not in part:
        raise DataError(f"{name} has no text, only {', '.join(part) or 'nothing'}", fix='a part is {"type": "text", "text": ...}')
    return checked_text(part["text"], f"{name}.text")


def _joined(messages: Messages, weights: dict[int, float], called: list[bool], name: str) -> tuple[Messages, dict[int, float]]:
    """Function calls that follow each other as one message, and the weights by the new positions."""
    joined: Messages = []
    of_joined: dict[int, float] = {}
    for index, message in enumerate(messages):
        weight = weights.get(index, 1.0)
        if called[index] and index and called[index - 1]:
            if weight != of_joined.get(len(joined) - 1, 1.0):
                raise DataError(
                    f"{name}[{index}] is one answer with the call before it, and their weights differ", fix="give all calls that follow each other one weight"
                )
            joined[-1] = {**joined[-1], "tool_calls": joined[-1]["tool_calls"] + message["tool_calls"]}
            continue
        if weight != 1:
            of_joined[len(joined)] = weight
        joined.append(message)
    return joined, of_joined
