"""Rows of the formats alpaca, text, tokenized and prompt_completion, and what each refuses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcore.data.formats.record_kinds import Conversation, PlainText, TextPair, TokenIds
from tests.unit.test_fields import ANSWER, USER, WRAPPED, records, refused

SYSTEM = {"role": "system", "content": "s"}


def alpaca(**fields: Any) -> Conversation:
    (record,) = records(fields, form="alpaca")
    assert isinstance(record, Conversation)
    return record


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({"instruction": "hi"}, [USER, ANSWER]),
        ({"instruction": "hi", "input": "", "system": "", "history": []}, [USER, ANSWER]),
        ({"instruction": "hi", "input": None, "system": None, "history": None}, [USER, ANSWER]),
        ({"instruction": "a", "input": "b"}, [{"role": "user", "content": "a\nb"}, ANSWER]),
        ({"instruction": "", "input": "hi"}, [USER, ANSWER]),
        ({"instruction": "hi", "system": "s", "history": [["hi", "hello"]] * 2}, [SYSTEM, USER, ANSWER, USER, ANSWER, USER, ANSWER]),
        ({"instruction": "hi", "history": '[["hi", "hello"]]'}, [USER, ANSWER, USER, ANSWER]),
    ],
)
def test_alpaca_becomes_messages(fields: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    record = alpaca(**fields, output="hello")
    assert (record.messages, record.tools, record.weights) == (messages, None, {})


def test_alpaca_weight_counts_for_all_answers_and_tools_go_along() -> None:
    record = alpaca(instruction="a", output="b", system="s", history=[["c", "d"]], weight=2, tools=[{"name": "f"}])
    assert (record.weights, record.tools) == ({2: 2.0, 4: 2.0}, [WRAPPED])
    assert alpaca(instruction="a", output="b", weight="0.5").weights == {1: 0.5}
    assert alpaca(instruction="a", output="b", weight=" ").weights == {}


def test_every_mistake_of_an_alpaca_row() -> None:
    row = {"instruction": 3, "input": [], "output": None, "system": {}, "history": [["a"], "b", ["c", 4]], "weight": "much"}
    text = refused({"instruction": "a", "output": "b"}, row, form="alpaca")
    for reason in ("instruction is a number", "input is an empty list", "output is null", "system is an object", "weight is 'much'"):
        assert f"f.jsonl:12: row 2: {reason}" in text
    for reason in ("history[0] is a list of 1", "history[1] is a string", "history[2][1] is a number"):
        assert f"f.jsonl:12: row 2: {reason}" in text
    assert "history is an object" in refused({"instruction": "a", "output": "b", "history": {}}, form="alpaca")
    assert "instruction is empty, and there is no input" in refused({"instruction": "", "output": "b"}, form="alpaca")


def test_text_is_taken_as_it_is() -> None:
    (record,) = records({"body": "  a\n", "meta": 3}, form="text", text="body")
    assert isinstance(record, PlainText) and record.text == "  a\n"
    assert "text is a number" in refused({"text": 3}, form="text")
    assert "row 1: the row has tools, and only messages" in refused({"text": "a", "tools": [{"name": "f"}]}, form="text")


def test_pairs_have_no_place_for_tools() -> None:
    pair = {"prompt": "a", "completion": "b"}
    assert "row 1: the row has functions, and only messages" in refused({**pair, "functions": [{"name": "f"}]}, form="prompt_completion")
    assert isinstance(records({**pair, "tools": "[]"}, form="prompt_completion")[0], TextPair)
    text = refused({"prompt": "\ud83d", "completion": "\ud83d", "weight": -1, "tools": "{"}, form="prompt_completion")
    assert text.count("row 1:") == 4
    talk = {"prompt": [{"role": "x"}], "completion": [3], "weight": -1, "tools": "{"}
    assert refused(talk, form="prompt_completion").count("row 1:") == 4


def test_pairs_of_messages_as_json_text() -> None:
    """As in a CSV file. A text that only looks like a list stays a text."""
    (record,) = records({"prompt": json.dumps([USER]), "completion": json.dumps([ANSWER])}, form="prompt_completion")
    assert isinstance(record, Conversation) and (record.messages, record.supervised_from) == ([USER, ANSWER], 1)
    for prompt, completion in (('[{"role": "user"', "[1]"), ("[1, 2]", "[3]"), (json.dumps([USER]), "yes")):
        (pair,) = records({"prompt": prompt, "completion": completion}, form="prompt_completion")
        assert isinstance(pair, TextPair) and (pair.prompt, pair.completion) == (prompt, completion)


def tokens(**fields: Any) -> TokenIds:
    (record,) = records(fields, form="tokenized")
    assert isinstance(record, TokenIds)
    return record


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans()), min_size=1, max_size=30))
def test_tokens_and_what_of_them_is_learned(pairs: list[tuple[int, bool]]) -> None:
    ids, labels = [each for each, _ in pairs], [each if learned else -100 for each, learned in pairs]
    record = tokens(input_ids=ids, labels=labels, attention_mask=[1] * len(ids))
    assert record.ids.dtype == np.int32 and record.ids.tolist() == ids
    marked = [False] * len(ids)
    for start, end in record.spans:
        assert start < end and not any(marked[max(start - 1, 0) : end]), "spans are apart"
        marked[start:end] = [True] * (end - start)
    assert marked == [learned for _, learned in pairs]
    as_text = tokens(input_ids=json.dumps(ids), labels=json.dumps(labels))
    assert (as_text.ids.tolist(), as_text.spans) == (ids, record.spans)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"input_ids": [], "labels": []}, "input_ids is an empty list"),
        ({"input_ids": "abc", "labels": [1]}, "input_ids is a string"),
        ({"input_ids": [1, 2.0], "labels": [1, 2]}, "input_ids[1] is a number (2.0)"),
        ({"input_ids": [1, True], "labels": [1, 1]}, "input_ids[1] is true or false"),
        ({"input_ids": [1, None], "labels": [1, 1]}, "input_ids[1] is null"),
        ({"input_ids": [1, -1], "labels": [1, -1]}, "input_ids[1] is -1"),
        ({"input_ids": [1, -100], "labels": [1, -100]}, "input_ids[1] is -100"),
        ({"input_ids": [1, 2**31], "labels": [1, 2]}, "input_ids[1] is 2147483648"),
        ({"input_ids": [1, 2], "labels": [1, -1]}, "labels[1] is -1"),
        ({"input_ids": [1, 2], "labels": [2]}, "input_ids has 2 tokens and labels has 1"),
        ({"input_ids": [1, 2, 3], "labels": [-100, 2, 4]}, "labels[2] is 4 and input_ids[2] is 3"),
        ({"input_ids": [1, 2, 3], "labels": [2, 3, -100]}, "labels[0] is 2 and input_ids[0] is 1; the labels stand one place early"),
        ({"input_ids": [1, 0], "labels": [1, -100], "attention_mask": [1, 0]}, "attention_mask[1] is 0"),
        ({"input_ids": [1, 0], "labels": [1, -100], "attention_mask": [1]}, "attention_mask is a list of 1, and the row has 2 tokens"),
    ],
)
def test_tokens_that_are_refused(fields: dict[str, Any], reason: str) -> None:
    assert reason in refused({"input_ids": [1, 2], "labels": [1, 2]}, fields, form="tokenized")


def test_labels_that_only_look_shifted_are_named_as_they_are() -> None:
    assert "one place early" not in refused({"input_ids": [5], "labels": [6]}, form="tokenized")
