"""Batched greedy answers equal those given one by one, and the score knows JSON from what looks like it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcore.answers import Limits, answer_all, deal_prompts, generate_greedily
from ftcore.questions import Question, longest_expected, read_questions, stop_ids
from ftcore.scoring.answer_metrics import parse_json
from ftcore.spec.errors import DataError
from ftcore.spec.sections import DataSet
from ftcore.tiny_llama import build_tiny_llama

EVAL = DataSet(path="builtin:extraction/eval")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("tiny") / "model"
    build_tiny_llama(folder)
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def test_questions_end_before_the_answer(tmp_path: Path) -> None:
    questions = read_questions(EVAL, range(1, 6), "data.eval", tmp_path)
    assert len(questions) == 5
    for question in questions:
        assert [message["role"] for message in question.messages] == ["system", "user"]
        assert parse_json(question.expected) is not None


@pytest.mark.parametrize(
    ("form", "row"),
    [
        ("messages", {"messages": [{"role": "user", "content": "and now?"}]}),
        ("messages", {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}]}),
        ("sharegpt", {"conversations": [{"from": "human", "value": "hi"}, {"from": "function_call", "value": '{"name": "f"}'}]}),
    ],
)
def test_a_row_without_an_answer_is_refused(tmp_path: Path, form: str, row: dict[str, Any]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match="row 1"):
        read_questions(DataSet(path=str(path), format=form), [1], "data.eval", tmp_path)


@pytest.mark.parametrize(
    ("row", "messages", "prompt", "expected"),
    [
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "system": "s"}, ["s", "a"], "", "b"),
        ({"instruction": "a", "input": "x", "output": "b", "history": [["c", "d"]]}, ["c", "d", "a\nx"], "", "b"),
        ({"question": "a", "answer": "b"}, [], "a", "b"),
        ({"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}, ["a"], "", "b"),
    ],
)
def test_questions_of_every_format(tmp_path: Path, row: dict[str, Any], messages: list[str], prompt: str, expected: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (question,) = read_questions(DataSet(path=str(path)), [1], "data.eval", tmp_path)
    assert ([message["content"] for message in question.messages], question.prompt, question.expected) == (messages, prompt, expected)


@pytest.mark.parametrize("row", [{"text": "a"}, {"input_ids": [1, 2], "labels": [-100, 2]}])
def test_sets_without_questions(tmp_path: Path, row: dict[str, Any]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match="ask nothing that an answer could be compared with") as caught:
        read_questions(DataSet(path=str(path)), [1], "data.eval_sets.other", tmp_path)
    assert caught.value.problems[0].where == "data.eval_sets.other" and "remove evaluation.metrics" in str(caught.value)


def test_a_batch_answers_as_one_by_one(tiny: tuple[Any, Any]) -> None:
    model, _ = tiny
    prompts = [(40, 41, 42), (50,) * 17, (61, 62), (70, 71, 72, 73, 74)]
    together = generate_greedily(model, prompts, stops=[], max_new_tokens=12, batch_size=3)
    for prompt, answer in zip(prompts, together, strict=True):
        assert answer == greedy_by_hand(model, prompt, 12)


def test_an_answer_ends_before_its_stop_token(tiny: tuple[Any, Any]) -> None:
    model, _ = tiny
    prompts = [(40, 41, 42), (50,) * 17]
    free = [greedy_by_hand(model, prompt, 12) for prompt in prompts]
    stop = free[0][3]
    stopped = generate_greedily(model, prompts, stops=[stop], max_new_tokens=12, batch_size=2)
    assert stopped == [ids[: ids.index(stop)] if stop in ids else ids for ids in free]
    assert len(stopped[0]) < 12


def test_the_turn_end_of_the_template_stops(tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    tokenizer.chat_template = tokenizer.chat_template.replace("message['content'] + '<|im_end|>'", "message['content'] + '<|im_start|>'")
    stops = stop_ids(tokenizer, model.generation_config.eos_token_id, chat=True)
    assert stops == sorted(tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>"]))


def test_answers_are_text_in_the_order_of_the_questions(tiny: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = tiny
    questions = read_questions(EVAL, range(1, 4), "data.eval", tmp_path)
    answers = answer_all(model, tokenizer, questions, max_new_tokens=6, batch_size=2)
    assert answers == [answer_all(model, tokenizer, [question], max_new_tokens=6)[0] for question in questions]


def test_longest_expected_counts_tokens(tiny: tuple[Any, Any]) -> None:
    _, tokenizer = tiny
    questions = [Question(row=1, expected=text) for text in ("{}", '{"a":1}')]
    assert longest_expected(tokenizer, questions) == len('{"a":1}')
    assert longest_expected(tokenizer, []) == 0


def test_every_prompt_is_dealt_once() -> None:
    lengths = [5, 90, 7, 7, 30, 2, 61, 8, 9]
    rounds = deal_prompts(lengths, 2, Limits(max_new_tokens=10, batch_tokens=100))
    assert sorted(index for dealt in rounds for part in dealt for index in part) == list(range(9))
    for dealt in rounds:
        assert all(sum(lengths[index] + 10 for index in part) <= 100 or len(part) == 1 for part in dealt)
    assert deal_prompts([4, 4, 4], 2, Limits(max_new_tokens=1, batch_tokens=1000)) == [((0, 2), (1,))]
    assert deal_prompts([], 2, Limits(max_new_tokens=1, batch_tokens=10)) == []


def greedy_by_hand(model: Any, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """One row, no padding, no cache."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return tuple(ids[len(prompt) :])
