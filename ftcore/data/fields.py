"""Rows -> records: the fields of the spec's format, with their types checked. Other fields of a row are never looked at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ftcore.data.problems import placed, stop_on
from ftcore.data.records import Row
from ftcore.spec.errors import DataError, Problem
from ftcore.spec.sections import DataSet

REQUIRED = {"messages": ("messages",), "prompt_completion": ("prompt", "completion")}
OPTIONAL = ("tools",)
ROLES = ("system", "developer", "user", "assistant", "tool")
MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages for a chat template."""

    row: Row
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    supervised_from: int = 0
    """Assistant turns before this message are context, not answers."""

    @property
    def roles(self) -> str:
        """The role sequence, for messages to the user."""
        return " ".join(str(message["role"]) for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPair:
    """A prompt and what follows it, joined as they are."""

    row: Row
    prompt: str
    completion: str


Record = Conversation | TextPair


def to_records(rows: Sequence[Row], dataset: DataSet, where: str) -> list[Record]:
    """One record a row. `where` is the data set's place in the spec (`data.train`).

    Raises DataError naming every row with a missing field or a wrong type, and a `columns` entry that the format hasn't.
    """
    _check_columns(dataset, where)
    records: list[Record] = []
    problems: list[Problem] = []
    for row in rows:
        try:
            records.append(_record(row, dataset, where))
        except DataError as error:
            problems.extend(placed(error, file=dataset.path, row=row.number, line=row.line))
    stop_on(problems, dataset.path)
    return records


def _check_columns(dataset: DataSet, where: str) -> None:
    known = (*REQUIRED[dataset.format], *OPTIONAL)
    problems = [
        Problem(
            what=f"{name!r} is no field of the format {dataset.format}",
            where=f"{where}.columns",
            fix=f"its fields are {', '.join(known)}: write FIELD: NAME IN THE FILE",
        )
        for name in dataset.columns
        if name not in known
    ]
    if problems:
        raise DataError(problems)


def _record(row: Row, dataset: DataSet, where: str) -> Record:
    values = {name: _field(row, name, dataset, where) for name in REQUIRED[dataset.format]}
    tools = _tools(row.value.get(dataset.columns.get("tools", "tools")))
    if dataset.format == "messages":
        messages = _messages(values["messages"], "messages")
        return Conversation(row=row, messages=messages, tools=tools)
    prompt, completion = values["prompt"], values["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        return TextPair(row=row, prompt=_text(prompt, "prompt"), completion=_text(completion, "completion"))
    if isinstance(prompt, list) and isinstance(completion, list):
        context = _messages(prompt, "prompt")
        return Conversation(row=row, messages=context + _messages(completion, "completion"), tools=tools, supervised_from=len(context))
    raise DataError(
        f"prompt is {_kind(prompt)} and completion is {_kind(completion)}",
        fix="both must be strings, or both lists of messages",
    )


def _field(row: Row, name: str, dataset: DataSet, where: str) -> Any:
    column = dataset.columns.get(name, name)
    value = row.value.get(column, MISSING)
    if value is MISSING:
        seen = ", ".join(list(row.value)[:20]) or "none"
        raise DataError(f"no field {column!r}; the row's fields are: {seen}", fix=f"name the field that holds the {name}: {where}.columns: {{{name}: NAME}}")
    return value


def _messages(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise DataError(f"{name} is {_kind(value)}", fix="a list with at least one message")
    problems: list[Problem] = []
    for index, message in enumerate(value):
        try:
            _check_message(message, f"{name}[{index}]")
        except DataError as error:
            problems.extend(error.problems)
    if problems:
        raise DataError(problems)
    return value


def _check_message(message: Any, name: str) -> None:
    if not isinstance(message, dict):
        raise DataError(f"{name} is {_kind(message)}", fix="a message is an object with role and content")
    role = message.get("role")
    if role not in ROLES:
        seen = f"role {role!r}" if "role" in message else f"no role, only {', '.join(message) or 'nothing'}"
        raise DataError(f"{name} has {seen}", fix=f"the roles are {', '.join(ROLES)}; a ShareGPT file (from, value) needs converting first")
    content, calls = message.get("content"), message.get("tool_calls")
    if calls is not None and (not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls)):
        raise DataError(f"{name}.tool_calls is {_kind(calls)}", fix="a list of objects")
    if content is None and not calls:
        raise DataError(f"{name} has neither content nor tool_calls", fix='write "content": "" for an empty answer')
    if content is not None:
        _text(content, f"{name}.content")


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{name} is {_kind(value)}", fix="a string; only text is trained on")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(
                f"{name} holds half of a surrogate pair (\\u{ord(value[error.start]):04x})", fix="repair the escape in the file: no tokenizer reads it"
            ) from None
    return value


def _tools(value: Any) -> list[dict[str, Any]] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError as error:
            raise DataError(f"tools is a string that is not JSON: {error}", fix="a list of tool objects, or that list as JSON text") from None
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise DataError(f"tools is {_kind(value)}", fix="a list of tool objects")
    return value


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    names = {dict: "an object", str: "a string", int: "a number", float: "a number", bool: "true or false", type(None): "null"}
    return names[type(value)]
