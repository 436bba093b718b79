"""Rows -> records: what each row of a set becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ftcore.data.formats.alpaca import alpaca_messages
from ftcore.data.formats.decide import decide_format
from ftcore.data.formats.messages import MESSAGE_KEYS, SHAREGPT_KEYS, read_messages
from ftcore.data.formats.record_kinds import Conversation, Messages, PlainText, Record, TextPair, TokenIds
from ftcore.data.formats.roles import RoleMap, check_order
from ftcore.data.formats.row_fields import RowFields, check_no_media
from ftcore.data.formats.tokenized import read_tokens
from ftcore.data.formats.tools import tool_definitions
from ftcore.data.formats.values import Mistakes, checked_text, kind, optional_text, unpacked
from ftcore.data.problems import placed, stop_on
from ftcore.data.reading.rows import BadRow, Row
from ftcore.spec.data_formats import talk_form
from ftcore.spec.errors import DataError, Problem
from ftcore.spec.sections import DataSet

Weights = dict[int, float]
NO_TALK: tuple[Messages, Weights] = ([], {})


def to_records(rows: Sequence[Row], dataset: DataSet, where: str) -> list[Record]:
    """One record a row, of a set that is in memory whole. Raises DataError as `decide_format`, and naming every row that can't be used."""
    decided, _ = decide_format(dataset, rows, where)
    maker = RecordMaker(decided, decided.format, where)
    records: list[Record] = []
    problems: list[Problem] = []
    for row in rows:
        try:
            records.append(maker.record(row))
        except DataError as error:
            problems.extend(placed(error, file=row.file or dataset.path, row=row.number, line=row.line))
    stop_on(problems, dataset.path)
    return records


class RecordMaker:
    """Makes the records of one set, whose format is decided. It can be sent to other processes."""

    def __init__(self, dataset: DataSet, form: str, where: str) -> None:
        """`dataset` as `decide_format` gives it, `form` its format, `where` its key in the spec, for what an error asks the user to write."""
        self._form = form
        self._fields = RowFields(dataset, form, where)
        self._roles = RoleMap(dataset.roles, where)

    def tried(self, row: Row | BadRow) -> Record | DataError:
        """What a row becomes, or why it can't be used."""
        if isinstance(row, BadRow):
            return DataError(row.problems)
        try:
            return self.record(row)
        except DataError as error:
            return error

    def record(self, row: Row) -> Record:
        """What a row becomes. Raises DataError, without the row's place, with every mistake of the row."""
        makers: dict[str, Callable[[Row], Record]] = {
            "messages": self._talk,
            "sharegpt": self._talk,
            "alpaca": self._alpaca,
            "prompt_completion": self._pair,
            "text": self._text,
            "tokenized": self._tokens,
        }
        return makers[self._form](row)

    def _talk(self, row: Row) -> Conversation:
        ((field, value),) = self._fields.required(row.value).items()
        keys = MESSAGE_KEYS if self._form == "messages" else SHAREGPT_KEYS
        with Mistakes() as mistakes:
            messages, weights = mistakes.of(lambda: read_messages(value, self._fields.own(field), self._roles, keys), NO_TALK)
            tools = mistakes.of(lambda: self._tools(row), None)
            system = mistakes.of(lambda: optional_text(self._fields.optional(row.value, "system"), self._fields.own("system")), "")
        if system and messages[0] != {"role": "system", "content": system}:
            messages, weights = [{"role": "system", "content": system}, *messages], _moved(weights, 1)
        return _conversation(row, messages, weights, tools)

    def _alpaca(self, row: Row) -> Conversation:
        with Mistakes() as mistakes:
            messages: Messages = mistakes.of(lambda: alpaca_messages(row.value, self._fields), [])
            weight = mistakes.of(lambda: self._fields.weight(row.value), 1.0)
            tools = mistakes.of(lambda: self._tools(row), None)
        return _conversation(row, messages, _times({}, weight, messages), tools)

    def _pair(self, row: Row) -> Record:
        prompt, completion = self._fields.required(row.value).values()
        names = self._fields.own("prompt"), self._fields.own("completion")
        if isinstance(prompt, str) and talk_form(prompt) == talk_form(completion) == "messages":
            prompt, completion = unpacked(prompt, names[0]), unpacked(completion, names[1])
        if isinstance(prompt, list) and isinstance(completion, list):
            return self._pair_of_messages(row, prompt, completion, names)
        if not (isinstance(prompt, str) and isinstance(completion, str)):
            raise DataError(f"{names[0]} is {kind(prompt)} and {names[1]} is {kind(completion)}", fix="both must be strings, or both lists of messages")
        with Mistakes() as mistakes:
            mistakes.of(lambda: checked_text(prompt, names[0]), "")
            mistakes.of(lambda: checked_text(completion, names[1]), "")
            weight = mistakes.of(lambda: self._fields.weight(row.value), 1.0)
            mistakes.of(lambda: self._require_no_tools(row), None)
        return TextPair(row=row, prompt=prompt, completion=completion, weight=weight)

    def _pair_of_messages(self, row: Row, prompt: list[Any], completion: list[Any], names: tuple[str, str]) -> Conversation:
        with Mistakes() as mistakes:
            context, _ = mistakes.of(lambda: read_messages(prompt, names[0], self._roles, MESSAGE_KEYS, answers=False), NO_TALK)
            answers, weights = mistakes.of(lambda: read_messages(completion, names[1], self._roles, MESSAGE_KEYS), NO_TALK)
            weight = mistakes.of(lambda: self._fields.weight(row.value), 1.0)
            tools = mistakes.of(lambda: self._tools(row), None)
        weights = _moved(_times(weights, weight, answers), len(context))
        return _conversation(row, context + answers, weights, tools, supervised_from=len(context))

    def _text(self, row: Row) -> PlainText:
        (value,) = self._fields.required(row.value).values()
        with Mistakes() as mistakes:
            mistakes.of(lambda: checked_text(value, self._fields.own("text")), "")
            mistakes.of(lambda: self._require_no_tools(row), None)
        return PlainText(row=row, text=value)

    def _tokens(self, row: Row) -> TokenIds:
        given = self._fields.required(row.value)
        names = self._fields.own("input_ids"), self._fields.own("labels")
        ids, spans = read_tokens(given["input_ids"], given["labels"], row.value.get("attention_mask"), names)
        return TokenIds(row=row, ids=ids, spans=spans)

    def _tools(self, row: Row) -> list[dict[str, Any]] | None:
        return tool_definitions(*self._fields.tools(row.value))

    def _require_no_tools(self, row: Row) -> None:
        if self._tools(row):
            name = self._fields.tools(row.value)[1]
            raise DataError(f"the row has {name}, and only messages are put into a chat template with them", fix="write messages, or take the tools out")


def _conversation(row: Row, messages: Messages, weights: Weights, tools: list[dict[str, Any]] | None, *, supervised_from: int = 0) -> Conversation:
    check_order(messages)
    check_no_media(row.value, [message["content"] for message in messages if message["content"]])
    return Conversation(row=row, messages=messages, tools=tools, supervised_from=supervised_from, weights=weights)


def _times(weights: Weights, weight: float, messages: Messages) -> Weights:
    """The answers' weights times the row's; those that are 1 are left out."""
    products = {index: weights.get(index, 1.0) * weight for index, message in enumerate(messages) if message["role"] == "assistant"}
    return {index: product for index, product in products.items() if product != 1}


def _moved(weights: Weights, by: int) -> Weights:
    return {index + by: weight for index, weight in weights.items()}
