"""ShareGPT turns become messages: role names, function calls, observations, weights; and the same conversation written both ways is the same record."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcore.data.formats.record_kinds import Conversation
from ftcore.data.formats.record_maker import to_records
from ftcore.data.formats.roles import KNOWN
from ftcore.data.reading.rows import Row
from ftcore.spec.sections import DataSet
from tests.unit.test_fields import ANSWER, USER, WRAPPED, records, refused

Turn = dict[str, Any]
H, G = {"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}
CALL = {"from": "function_call", "value": '{"name": "f", "arguments": {"a": null, "b": [1.50, {"c": ""}]}}'}
SEEN = {"from": "observation", "value": '{"x": 1}'}
CALLED = {"type": "function", "function": {"name": "f", "arguments": {"a": None, "b": [1.5, {"c": ""}]}}}


def talk(*turns: Turn, **fields: Any) -> Conversation:
    (record,) = records({"conversations": list(turns), **fields}, form="sharegpt")
    assert isinstance(record, Conversation)
    return record


def refusal(*turns: Any, **fields: Any) -> str:
    return refused({"conversations": list(turns), **fields}, form="sharegpt")


def test_turns_with_a_call() -> None:
    record = talk(H, CALL, SEEN, G, tools='[{"name": "f"}]')
    assert record.tools == [WRAPPED]
    assert record.messages == [USER, {"role": "assistant", "content": None, "tool_calls": [CALLED]}, {"role": "tool", "content": '{"x": 1}'}, ANSWER]
    assert record.roles == "user assistant tool assistant"


@pytest.mark.parametrize(("role", "name"), [(role, name) for role, names in KNOWN.items() for name in (*names, names[0].upper(), f" {names[0].title()} ")])
def test_names_of_roles(role: str, name: str) -> None:
    value = CALL["value"] if role == "function_call" else "hi"
    before = [H, CALL] if role == "tool" else []
    record = talk(*before, {"from": name, "value": value})
    assert record.messages[-1]["role"] == ("assistant" if role == "function_call" else role)
    assert ("tool_calls" in record.messages[-1]) == (role == "function_call")
    same = [{"role": "user", "content": "hi"}, {"role": "function_call", "content": CALL["value"]}] if before else []
    assert records({"messages": [*same, {"role": name, "content": value}]})[0].messages == record.messages


def test_names_of_roles_that_the_set_adds() -> None:
    turns = [{"from": "Kunde", "value": "hi"}, {"from": "gpt", "value": "quoted"}, {"from": "Berater", "value": "hello"}]
    rows = [Row(number=1, line=1, value={"conversations": turns})]
    dataset = DataSet(path="f.jsonl", format="sharegpt", roles={"Kunde": "user", "Berater": "assistant", "gpt": "user"})
    (record,) = to_records(rows, dataset, "data.train")
    assert record.roles == "user user assistant"
    text = refusal({"from": "Kunde", "value": "hi"})
    assert "row 1: conversations[0] has role 'Kunde'" in text and "data.train.roles: {Kunde: user}" in text
    assert "a role that is a number" in refusal({"from": 3, "value": "hi"})


@pytest.mark.parametrize(
    "turn",
    [{"role": "human", "value": "hi"}, {"from": "human", "content": "hi"}, {"role": "user", "text": "hi"}, {"from": "human", "value": None, "text": "hi"}],
)
def test_where_a_turn_says_who_and_what(turn: Turn) -> None:
    assert talk(turn, G).messages == [USER, ANSWER]


def test_system_text_beside_the_turns() -> None:
    system = {"role": "system", "content": "s"}
    assert talk(H, G, system="s").messages == [system, USER, ANSWER]
    assert talk({"from": "system", "value": "s"}, H, G, system="s").messages == [system, USER, ANSWER]
    assert talk({"from": "system", "value": "t"}, H, G, system="s").roles == "system system user assistant"
    assert talk(H, G, system="").messages == talk(H, G, system=None).messages == [USER, ANSWER]
    assert talk(H, {**G, "weight": 2}, H, {**G, "train": False}, system="s").weights == {2: 2.0, 4: 0.0}
    assert "system is a number" in refusal(H, G, system=3)


def test_calls_that_follow_each_other_are_one_answer() -> None:
    other = {"from": "function_call", "value": '[{"name": "g", "arguments": "{}"}, {"name": "h"}]'}
    record = talk(H, {**CALL, "weight": 2}, {**other, "weight": 2}, SEEN, SEEN, {**G, "weight": 3}, {**CALL, "train": False})
    assert record.roles == "user assistant tool tool assistant assistant"
    assert [call["function"]["name"] for call in record.messages[1]["tool_calls"]] == ["f", "g", "h"]
    assert [call["function"]["arguments"] for call in record.messages[1]["tool_calls"][1:]] == [{}, {}]
    assert record.weights == {1: 2.0, 4: 3.0, 5: 0.0}
    assert "conversations[2] is one answer with the call before it, and their weights differ" in refusal(H, CALL, {**CALL, "weight": 2})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("search(x)", "conversations[1].value is text that is not JSON"),
        ("{'name': 'f'}", "conversations[1].value is text that is not JSON"),
        ('{"name": "f", "name": "g"}', "the key 'name' stands twice"),
        ('{"name": "f", "arguments": {"a": NaN}}', "NaN is not JSON"),
        ('"f"', "conversations[1].value is a string"),
        ("[]", "conversations[1].value holds no call"),
        ("[3]", "conversations[1].value[0] is a number"),
        ('{"arguments": {}}', "conversations[1].value[0] has no name of a function"),
        ('{"name": "f", "arguments": [1]}', "conversations[1].value[0].arguments is a list of 1"),
        ('{"name": "f", "arguments": "{"}', "conversations[1].value[0].arguments is text that is not JSON"),
        ('{"name": "f", "arguments": {"a": "\\ud83d"}}', "half of a surrogate pair"),
        (None, "conversations[1].value is null"),
    ],
)
def test_calls_that_are_none(value: Any, reason: str) -> None:
    text = refusal(H, {"from": "function_call", "value": value})
    assert text.startswith("f.jsonl:11: row 1: ") and reason in text


def test_every_mistake_of_a_row_at_once() -> None:
    text = refusal({"from": "x", "value": "a"}, {"from": "gpt"}, {"value": "c"}, "d", G, tools="{", system=1)
    for reason in (
        "[0] has role 'x'",
        "[1] has neither value nor tool_calls",
        "[2] has no from or role, only value",
        "[3] is a string",
        "tools is",
        "system is",
    ):
        assert reason in text
    assert text.count("row 1:") == 6


def test_images_that_the_text_refers_to() -> None:
    seen = {"from": "human", "value": "<image>\nWhat is this?"}
    assert "the row has image (a string), and its text refers to them" in refusal(seen, G, image="a.png")
    assert "the row has images (a list of 1)" in refusal(seen, G, images=["a.png"])
    assert talk(seen, G, images=[]).messages[0]["content"] == talk(seen, G).messages[0]["content"] == seen["value"]
    assert talk(H, G, image="cover.png").messages == [USER, ANSWER]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
CALLS = st.lists(st.tuples(st.sampled_from("fgh"), st.dictionaries(st.text(max_size=4), JSON, max_size=3)), min_size=1, max_size=2)
WEIGHT = st.sampled_from([{}, {}, {"weight": 2}, {"train": False}, {"weight": 0.5, "train": True}])
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def both_ways(draw: st.DrawFn) -> tuple[list[Turn], list[Turn]]:
    """A conversation as ShareGPT's turns and as messages; no two assistant's calls follow each other."""
    turns: list[Turn] = []
    messages: list[Turn] = []
    for _ in range(draw(st.integers(1, 4))):
        text, answer, weight = draw(TEXT), draw(TEXT), draw(WEIGHT)
        turns.append({"from": draw(st.sampled_from(("human", "user", "Human"))), "value": text})
        messages.append({"role": "user", "content": text})
        if draw(st.booleans()):
            calls = [{"name": name, "arguments": arguments} for name, arguments in draw(CALLS)]
            turns.append({"from": "function_call", "value": json.dumps(calls if len(calls) > 1 else calls[0], ensure_ascii=draw(st.booleans())), **weight})
            turns += [{"from": "observation", "value": text} for _ in calls]
            written = [
                {"type": "function", "function": {**call, "arguments": draw(st.sampled_from([call["arguments"], json.dumps(call["arguments"])]))}}
                for call in calls
            ]
            messages.append({"role": "assistant", "content": None, "tool_calls": written, **weight})
            messages += [{"role": "tool", "content": text} for _ in calls]
        turns.append({"from": "gpt", "value": answer, **weight})
        messages.append({"role": "assistant", "content": answer, **weight})
    return turns, messages


@given(both_ways(), st.sampled_from([None, "", "be kind"]))
@settings(max_examples=150, deadline=None)
def test_both_ways_are_one_record(both: tuple[list[Turn], list[Turn]], system: str | None) -> None:
    turns, messages = both
    before = copy.deepcopy(both)
    shared = talk(*turns, system=system)
    first = [{"role": "system", "content": system}] if system else []
    (plain,) = records({"messages": [*first, *messages]})
    (beside,) = records({"messages": messages, "system": system})
    assert (shared.messages, shared.weights, shared.roles) == (plain.messages, plain.weights, plain.roles)
    assert (beside.messages, beside.weights) == (plain.messages, plain.weights)
    assert both == before, "rows are left as they were"
    # What came out is a conversation that reads back as itself.
    (again,) = records({"messages": json.loads(json.dumps(shared.messages))})
    assert again.messages == shared.messages
