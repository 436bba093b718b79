"""Let a model answer held-out conversations, greedily and in batches, and score the answers as JSON.

Axes: B rows of a batch, T tokens of the longest prompt in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ftcore.data.fields import Conversation, to_records
from ftcore.data.records import load_bytes, parse_rows
from ftcore.spec.errors import DataError
from ftcore.spec.sections import DataSet

TokenIds = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A conversation up to its last answer, and that answer."""

    messages: tuple[dict[str, Any], ...]
    """What the model is shown."""
    expected: str
    """What the data set answers."""
    tools: tuple[dict[str, Any], ...] = ()
    """Offered to the chat template; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How many answers are what they should be."""

    rows: int
    valid_json: int
    """Answers that are one JSON object and nothing else."""
    exact: int
    """Answers whose object equals the expected one; the order of keys and spaces between them don't count."""

    @property
    def valid_share(self) -> float:
        """In [0, 1]; 0 without rows."""
        return self.valid_json / self.rows if self.rows else 0.0

    @property
    def exact_share(self) -> float:
        """In [0, 1]; 0 without rows."""
        return self.exact / self.rows if self.rows else 0.0


def read_questions(dataset: DataSet, limit: int) -> list[Question]:
    """The first `limit` rows of a data set of messages, each with its last message as the expected answer.

    Raises DataError when the file can't be read, or a row among them does not end with an assistant's text.
    """
    rows = parse_rows(load_bytes(dataset.path), dataset.path)[:limit]
    questions = []
    for record in to_records(rows, dataset, "data.eval"):
        last = record.messages[-1] if isinstance(record, Conversation) else {}
        if not isinstance(record, Conversation) or last.get("role") != "assistant" or not last.get("content"):
            raise DataError(
                "the row does not end with an assistant's text, so there is nothing to compare an answer with",
                where=f"{dataset.path}, row {record.row.number}",
                fix="use a data set in the messages format whose rows end with an answer",
            )
        questions.append(Question(messages=tuple(record.messages[:-1]), expected=last["content"], tools=tuple(record.tools or ())))
    return questions


def longest_expected(tokenizer: Any, questions: Sequence[Question]) -> int:
    """Tokens of the longest expected answer; 0 without questions."""
    return max((len(tokenizer(question.expected, add_special_tokens=False)["input_ids"]) for question in questions), default=0)


def answer_all(model: Any, tokenizer: Any, questions: Sequence[Question], *, max_new_tokens: int, batch_size: int = 24) -> list[str]:
    """What the model answers to each question in at most `max_new_tokens`, without special tokens. Greedy, so that it depends on nothing but the model."""
    prompts = [_prompt_ids(tokenizer, question) for question in questions]
    stops = stop_ids(model, tokenizer)
    generated = generate_greedily(model, prompts, stops=stops, max_new_tokens=max_new_tokens, batch_size=batch_size)
    return [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in generated]


def _prompt_ids(tokenizer: Any, question: Question) -> TokenIds:
    text = tokenizer.apply_chat_template(list(question.messages), tools=list(question.tools) or None, add_generation_prompt=True, tokenize=False)
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


def stop_ids(model: Any, tokenizer: Any) -> TokenIds:
    """The tokens that end an answer: those of the generation config, the tokenizer's end of text, and what the chat template writes after an answer."""
    known = model.generation_config.eos_token_id
    stops = {tokenizer.eos_token_id, *(known if isinstance(known, list) else [known])}
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}], tokenize=False)
    after = tokenizer(rendered.rpartition("answer")[2], add_special_tokens=False)["input_ids"]
    if after and after[0] in tokenizer.added_tokens_decoder:
        stops.add(after[0])
    return sorted(stop for stop in stops if stop is not None)


def generate_greedily(model: Any, prompts: Sequence[TokenIds], *, stops: TokenIds, max_new_tokens: int, batch_size: int) -> list[TokenIds]:
    """The tokens that follow each prompt, up to and without the first of `stops`.

    Prompts are padded on the left, so that every row continues at its own end; batches hold prompts of like length.
    """
    answers: list[TokenIds] = [[] for _ in prompts]
    by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    device = next(model.parameters()).device
    for start in range(0, len(by_length), batch_size):
        chosen = by_length[start : start + batch_size]
        longest = max(len(prompts[index]) for index in chosen)
        filler = stops[0] if stops else 0
        ids_BT = torch.full((len(chosen), longest), filler, dtype=torch.long, device=device)
        mask_BT = torch.zeros_like(ids_BT)
        for row, index in enumerate(chosen):
            begin = longest - len(prompts[index])
            ids_BT[row, begin:] = torch.tensor(prompts[index])
            mask_BT[row, begin:] = 1
        with torch.inference_mode():
            output = model.generate(
                input_ids=ids_BT,
                attention_mask=mask_BT,
                do_sample=False,
                max_new_tokens=max_new_tokens,
                eos_token_id=stops or None,
                pad_token_id=filler,
                use_cache=True,
            )
        for row, index in enumerate(chosen):
            answers[index] = _until_stop(output[row, longest:].tolist(), stops)
    return answers


def _until_stop(ids: TokenIds, stops: TokenIds) -> TokenIds:
    return ids[: next((position for position, token in enumerate(ids) if token in stops), len(ids))]


def score(questions: Sequence[Question], answers: Sequence[str]) -> Score:
    """Compares each answer with the expected one, as JSON objects."""
    valid = exact = 0
    for question, answer in zip(questions, answers, strict=True):
        given = parse_object(answer)
        valid += given is not None
        exact += given is not None and _canonical(given) == _canonical(parse_object(question.expected))
    return Score(rows=len(questions), valid_json=valid, exact=exact)


def parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` is, or None when it is anything else (NaN and infinities are no JSON)."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(name: str) -> None:
    raise ValueError(name)


def _canonical(value: dict[str, Any] | None) -> str:
    # As text: in Python True equals 1, and 1 equals 1.0.
    return json.dumps(value, sort_keys=True)
