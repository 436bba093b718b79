"""Held-out rows as questions: what a model is shown, and what the data answers. Needs no torch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.data.cache import SampleSet
from ftcore.data.formats.decide import decide_format
from ftcore.data.formats.record_kinds import Conversation, TextPair
from ftcore.data.formats.record_maker import RecordMaker
from ftcore.data.problems import placed, stop_on
from ftcore.data.reading.find import find_files
from ftcore.data.reading.reader import read_chunks
from ftcore.data.reading.rows import BadRow, Row, Source
from ftcore.data.templates.chosen import turn_end_id
from ftcore.data.templates.prompts import prompt_tokens
from ftcore.spec.data_formats import LOOKED_AT
from ftcore.spec.errors import CheckpointError, DataError, Problem
from ftcore.spec.resolved import build
from ftcore.spec.run_dir import write_atomic
from ftcore.spec.sections import DataSet

TokenIds = tuple[int, ...]

UNASKED = ("text", "tokenized")
"""Formats whose rows are no questions."""
UNASKED_FIX = "remove evaluation.metrics for a loss alone, or evaluate them on a set of messages, sharegpt, alpaca or prompt_completion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A conversation up to its last answer, or a prompt, and what follows in the data."""

    row: int
    """Row of the data file, from 1."""
    messages: tuple[dict[str, Any], ...] = ()
    """What the model is shown, for the chat template; empty where it is `prompt`."""
    prompt: str = ""
    """What the model is shown, as it is."""
    expected: str
    """What the data answers."""
    tools: tuple[dict[str, Any], ...] = ()
    """Offered to the chat template; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A question as the model reads it; one line of questions/SET.jsonl."""

    question: Question
    ids: TokenIds


def read_questions(dataset: DataSet, rows: Collection[int], where: str, cache_dir: Path) -> list[Question]:
    """The rows of a data set with these numbers (from 1), in file order. `where` is the set's place in the spec.

    Raises DataError when the files can't be read, when the set's format has no questions, and naming every row among them that does not end
    with an answer in text.
    """
    first, wanted = _rows(find_files(dataset, where, purpose="eval", cache_dir=cache_dir), rows)
    decided, _ = decide_format(dataset, first, where)
    if decided.format in UNASKED:
        what = f"rows of the format {decided.format} ask nothing that an answer could be compared with"
        raise DataError([Problem(what=what, file=dataset.path, where=where, fix=UNASKED_FIX)])
    maker = RecordMaker(decided, decided.format, where)
    questions: list[Question] = []
    problems: list[Problem] = []
    for row in wanted:
        try:
            questions.append(_question(maker.record(row)))
        except DataError as error:
            problems.extend(placed(error, file=row.file, row=row.number, line=row.line))
    stop_on(problems, dataset.path)
    return questions


def _rows(source: Source, numbers: Collection[int]) -> tuple[list[Row], list[Row]]:
    """The first rows that can be read, and those with these numbers; nothing behind them is read."""
    first: list[Row] = []
    wanted: list[Row] = []
    last = max(numbers, default=0)
    for chunk in read_chunks(source):
        for row in chunk.rows():
            if isinstance(row, BadRow):
                continue
            first += [row] if len(first) < LOOKED_AT else []
            wanted += [row] if row.number in numbers else []
        if len(first) == LOOKED_AT and chunk.first + chunk.count > last:
            break
    return first, wanted


def _question(record: Conversation | TextPair) -> Question:
    row = record.row.number
    if isinstance(record, TextPair):
        return Question(row=row, prompt=record.prompt, expected=record.completion)
    last = record.messages[-1]
    if last["role"] != "assistant" or not last.get("content"):
        raise DataError(
            "the row does not end with an assistant's text, so there is nothing to compare an answer with",
            fix="end the row with an answer, or remove evaluation.metrics",
        )
    return Question(row=row, messages=tuple(record.messages[:-1]), expected=str(last["content"]), tools=tuple(record.tools or ()))


def prompt_ids(tokenizer: Any, question: Question) -> TokenIds:
    """The tokens of a question's messages by the chat template, up to where the answer begins."""
    return prompt_tokens(tokenizer, list(question.messages), list(question.tools) or None)


def make_prompts(tokenizer: Any, questions: Sequence[Question], samples: SampleSet) -> list[Prompt]:
    """The questions as training showed them: messages by the chat template, a plain prompt as the tokens before its completion.

    `samples` holds a sample for each question's row. Raises DataError naming every row whose prompt is empty.
    """
    # A row that was split has several samples; the first one holds the prompt.
    by_row = {int(row): len(samples.rows) - 1 - index for index, row in enumerate(samples.rows[::-1])}
    prompts, empty = [], []
    for question in questions:
        if question.messages:
            ids = prompt_ids(tokenizer, question)
        else:
            sample = samples.sample(by_row[question.row])
            ids = tuple(int(token) for token in sample.ids[: int(sample.spans[0][0])])
        prompts.append(Prompt(question=question, ids=ids))
        empty += [] if ids else [question.row]
    if empty:
        shown = ", ".join(map(str, empty[:10]))
        raise DataError(f"the prompt is empty, so there is nothing to answer: row {shown}", fix="write a prompt, or remove evaluation.metrics")
    return prompts


def stop_ids(tokenizer: Any, generation_stops: int | Sequence[int] | None, *, chat: bool) -> list[int]:
    """The tokens that end an answer, where training taught the end: `generation_stops` (the model's own), the tokenizer's end of text,
    and with `chat` what the chat template writes after an answer."""
    stops = {tokenizer.eos_token_id, *(generation_stops if isinstance(generation_stops, list) else [generation_stops])}
    if chat:
        stops.add(turn_end_id(tokenizer))
    return sorted(stop for stop in stops if stop is not None)


def longest_expected(tokenizer: Any, questions: Sequence[Question]) -> int:
    """Tokens of the longest expected answer; 0 without questions."""
    return max((len(tokenizer(question.expected, add_special_tokens=False)["input_ids"]) for question in questions), default=0)


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """A line for each prompt."""
    write_atomic(path, "".join(json.dumps(dataclasses.asdict(prompt), ensure_ascii=False) + "\n" for prompt in prompts))


def load_prompts(path: Path) -> list[Prompt]:
    """Reads what `write_prompts` wrote. Raises CheckpointError when the file is missing or damaged."""
    try:
        return [build(Prompt, json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"can't read the questions: {error}", where=str(path), fix="start the evaluation again") from error
