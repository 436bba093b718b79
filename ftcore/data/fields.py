"""Rows -> records: the fields of the spec's format, with their types checked. Other fields of a row are never looked at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ftcore.data.problems import placed, stop_on
from ftcore.data.records import Row
from ftcore.data.weights import checked_weight, taken_weights
from ftcore.spec.errors import DataError, Problem
from ftcore.spec.names import COLUMNS
from ftcore.spec.sections import DataSet

REQUIRED = {"messages": ("messages",), "prompt_completion": ("prompt", "completion")}
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
    weights: dict[int, float] = field(default_factory=dict)
    """Index of an answer -> what each of its tokens counts, where that isn't 1; at 0 it is context."""

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
    weight: float = 1.0
    """What each token of the completion counts."""


Record = Conversation | TextPair


def to_records(rows: Sequence[Row], dataset: DataSet, where: str) -> list[Record]:
    """One record a row. `where` is the data set's place in the spec (`data.train`).

    Raises DataError naming every row with a missing field, a wrong type or a weight that is none, and a `columns` entry that
    the format hasn't, or that names weights which no row has.
    """
    _check_columns(dataset, rows, where)
    records: list[Record] = []
    problems: list[Problem] = []
    for row in rows:
        try:
            records.append(_record(row, dataset, where))
        except DataError as error:
            problems.extend(placed(error, file=dataset.path, row=row.number, line=row.line))
    stop_on(problems, dataset.path)
    return records


def _check_columns(dataset: DataSet, rows: Sequence[Row], where: str) -> None:
    known = COLUMNS[dataset.format]
    problems = [
        Problem(
            what=f"{name!r} is no field of the format {dataset.format}",
            where=f"{where}.columns",
            fix=f"its fields are {', '.join(known)}: write FIELD: NAME IN THE FILE",
        )
        for name in dataset.columns
        if name not in known
    ]
    column = dataset.columns.get("weight") if "weight" in known else None
    if column is not None and not any(column in row.value for row in rows):
        problems.append(Problem(what=f"no row has the field {column!r}", where=f"{where}.columns.weight", fix="name the field that holds the weight"))
    if problems:
        raise DataError(problems)


def _record(row: Row, dataset: DataSet, where: str) -> Record:
    values = {name: _field(row, name, dataset, where) for name in REQUIRED[dataset.format]}
    tools = _tools(row.value.get(dataset.columns.get("tools", "tools")))
    if dataset.format == "messages":
        messages, weights = taken_weights(_messages(values["messages"], "messages"), "messages")
        return Conversation(row=row, messages=messages, tools=tools, weights=weights)
    weight = _row_weight(row, dataset)
    prompt, completion = values["prompt"], values["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        return TextPair(row=row, prompt=_text(prompt, "prompt"), completion=_text(completion, "completion"), weight=weight)
    if isinstance(prompt, list) and isinstance(completion, list):
        context, _ = taken_weights(_messages(prompt, "prompt"), "prompt", answers=False)
        answers, of_answers = taken_weights(_messages(completion, "completion"), "completion")
        of_row = {index: of_answers.get(index, 1.0) * weight for index, message in enumerate(answers) if message["role"] == "assistant"}
        weights = {index + len(context): product for index, product in of_row.items() if product != 1}
        return Conversation(row=row, messages=context + answers, tools=tools, supervised_from=len(context), weights=weights)
    raise DataError(
        f"prompt is {_kind(prompt)} and completion is {_kind(completion)}",
        fix="both must be strings, or both lists of messages",
    )


def _row_weight(row: Row, dataset: DataSet) -> float:
    column = dataset.columns.get("weight", "weight")
    value = row.value.get(column)
    return 1.0 if value is None else checked_weight(value, column)


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
