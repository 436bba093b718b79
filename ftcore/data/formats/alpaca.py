"""Rows of the format alpaca -> messages: what a chat template makes of them is up to the model, not to the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftcore.data.formats.record_kinds import Messages
from ftcore.data.formats.row_fields import RowFields
from ftcore.data.formats.values import checked_text, kind, optional_text, unpacked
from ftcore.spec.errors import DataError, Problem

JOINT = "\n"
"""Between an instruction and its input."""
_HISTORY_FIX = "a list of [question, answer] pairs that came before"


def alpaca_messages(values: Mapping[str, Any], fields: RowFields) -> Messages:
    """The system text, the history's questions and answers, instruction and input with a line end between, and the output.

    A field that is missing, null or empty adds nothing. Raises DataError with every mistake of the row.
    """
    given = fields.required(values)
    problems: list[Problem] = []

    def text(name: str, *, needed: bool) -> str:
        try:
            value = given[name] if needed else fields.optional(values, name)
            return checked_text(value, fields.own(name)) if needed else optional_text(value, fields.own(name))
        except DataError as error:
            problems.extend(error.problems)
            return ""

    system, instruction, more, output = text("system", needed=False), text("instruction", needed=True), text("input", needed=False), text("output", needed=True)
    try:
        before = _history(fields.optional(values, "history"), fields.own("history"))
    except DataError as error:
        problems.extend(error.problems)
    question = JOINT.join(part for part in (instruction, more) if part)
    if not question and not problems:
        what = f"{fields.own('instruction')} is empty, and there is no {fields.own('input')}"
        problems.append(Problem(what=what, fix="write what is asked, or take the row out"))
    if problems:
        raise DataError(problems)
    first = [{"role": "system", "content": system}] if system else []
    return [*first, *before, {"role": "user", "content": question}, {"role": "assistant", "content": output}]


def _history(value: Any, name: str) -> Messages:
    turns = unpacked(value, name)
    if turns is None or turns == "":
        return []
    if not isinstance(turns, list):
        raise DataError(f"{name} is {kind(turns)}", fix=_HISTORY_FIX)
    messages: Messages = []
    problems: list[Problem] = []
    for index, turn in enumerate(turns):
        try:
            if not isinstance(turn, list) or len(turn) != 2:
                raise DataError(f"{name}[{index}] is {kind(turn)}", fix=_HISTORY_FIX)
            question, answer = (checked_text(text, f"{name}[{index}][{at}]") for at, text in enumerate(turn))
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        except DataError as error:
            problems.extend(error.problems)
    if problems:
        raise DataError(problems)
    return messages
